"""Data parallelism in MXNet: two devices in one process, as in chapter 1.

    python teaching/frameworks/mxnet_step.py

Prints the mean loss of each step.
"""

import start

from d2lpar import autograd, devices, gluon, np, npx

two = devices.parse("cpu:2")  # or "gpu:2"
loss = gluon.loss.SoftmaxCrossEntropyLoss()


def lenet(X, params):
    W1, b1, W2, b2, W3, b3, W4, b4 = params
    h = npx.convolution(X, W1, b1, kernel=(3, 3), num_filter=20)
    h = npx.pooling(npx.relu(h), kernel=(2, 2), stride=(2, 2), pool_type="avg")
    h = npx.convolution(h, W2, b2, kernel=(5, 5), num_filter=50)
    h = npx.pooling(npx.relu(h), kernel=(2, 2), stride=(2, 2), pool_type="avg")
    h = npx.relu(np.dot(h.reshape((h.shape[0], -1)), W3) + b3)
    return np.dot(h, W4) + b4


def get_params(params, device):
    copies = [np.array(p, ctx=device) for p in params]
    for p in copies:
        p.attach_grad()
    return copies


def allreduce(data):
    for array in data[1:]:
        data[0][:] += array.as_in_ctx(data[0].ctx)
    for array in data[1:]:
        array[:] = data[0].as_in_ctx(array.ctx)


def train_batch(X, y, device_params, lr):
    X_shards = gluon.utils.split_and_load(np.array(X), two)
    y_shards = gluon.utils.split_and_load(np.array(y), two)
    with autograd.record():
        losses = [
            loss(lenet(X_k, params), y_k)
            for X_k, y_k, params in zip(X_shards, y_shards, device_params)
        ]
    for l in losses:
        l.backward()
    for gradients in zip(*([p.grad for p in params] for params in device_params)):
        allreduce(gradients)
    for params in device_params:
        for p in params:
            p[:] -= lr / len(X) * p.grad
    return sum(float(l.sum()) for l in losses) / len(X)


device_params = [get_params(start.params(), device) for device in two]
for X, y in start.batches():
    print(train_batch(X, y, device_params, start.LR))
