"""d2l's training from scratch, whose split_and_load takes even batches only."""

from contexts import (
    allreduce_gradients,
    autograd,
    batch,
    contexts,
    get_params,
    gluon,
    init,
    loss,
    net,
    np,
    sgd,
)


def train_batch(X, y, device_params, devices, lr):
    X_shards = gluon.utils.split_and_load(np.array(X, dtype=X.dtype), devices)
    y_shards = gluon.utils.split_and_load(np.array(y), devices)
    with autograd.record():
        losses = [
            loss(net(X_shard, device_W), y_shard)
            for X_shard, y_shard, device_W in zip(X_shards, y_shards, device_params)
        ]
    for l in losses:
        l.backward()
    allreduce_gradients(device_params)
    sgd(device_params, lr, X.shape[0])


def replicas(params, X, y, num_devices, lr, steps=1):
    devices = contexts(num_devices)
    device_params = [get_params(params, device) for device in devices]
    for _ in range(steps):
        train_batch(X, y, device_params, devices, lr)
    return [[p.asnumpy() for p in params] for params in device_params]


def step(params, X, y, num_devices, lr, steps=1):
    return replicas(params, X, y, num_devices, lr, steps)[0]
