"""d2l's functions of "Training on Multiple GPUs" for MXNet, as the book prints them.

The functions of that section and those that it takes from earlier ones
(`d2l.split_batch`, `d2l.sgd`), from d2l 1.0.3; nothing is tuned. Imports MXNet in the
environment that Python finds, and does not need d2l.
"""

import job  # noqa: F401  before mxnet

from d2lpar._numpy_names import restore_numpy_names, write_numbers_plainly

restore_numpy_names()

from mxnet import autograd, gluon, np, npx  # noqa: E402

write_numbers_plainly()
npx.set_np()


# Sections 23.8 and 13.5 of the book.
def sgd(params, lr, batch_size):
    for param in params:
        param[:] = param - lr * param.grad / batch_size


def split_batch(X, y, devices):
    assert X.shape[0] == y.shape[0]
    return (
        gluon.utils.split_and_load(X, devices),
        gluon.utils.split_and_load(y, devices),
    )


# The section itself.
def lenet(X, params):
    h1_conv = npx.convolution(
        data=X, weight=params[0], bias=params[1], kernel=(3, 3), num_filter=20
    )
    h1_activation = npx.relu(h1_conv)
    h1 = npx.pooling(data=h1_activation, pool_type="avg", kernel=(2, 2), stride=(2, 2))
    h2_conv = npx.convolution(
        data=h1, weight=params[2], bias=params[3], kernel=(5, 5), num_filter=50
    )
    h2_activation = npx.relu(h2_conv)
    h2 = npx.pooling(data=h2_activation, pool_type="avg", kernel=(2, 2), stride=(2, 2))
    h2 = h2.reshape(h2.shape[0], -1)
    h3_linear = np.dot(h2, params[4]) + params[5]
    h3 = npx.relu(h3_linear)
    return np.dot(h3, params[6]) + params[7]


loss = gluon.loss.SoftmaxCrossEntropyLoss()


def get_params(params, device):
    new_params = [p.copyto(device) for p in params]
    for p in new_params:
        p.attach_grad()
    return new_params


def allreduce(data):
    for i in range(1, len(data)):
        data[0][:] += data[i].copyto(data[0].ctx)
    for i in range(1, len(data)):
        data[0].copyto(data[i])


def train_batch(X, y, device_params, devices, lr):
    X_shards, y_shards = split_batch(X, y, devices)
    with autograd.record():
        losses = [
            loss(lenet(X_shard, device_W), y_shard)
            for X_shard, y_shard, device_W in zip(X_shards, y_shards, device_params)
        ]
    for l in losses:
        l.backward()
    for i in range(len(device_params[0])):
        allreduce([device_params[c][i].grad for c in range(len(devices))])
    for param in device_params:
        sgd(param, lr, X.shape[0])
    return losses  # not in the book: the check compares them with ours
