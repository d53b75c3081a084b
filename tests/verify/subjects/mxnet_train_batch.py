"""The four functions of d2lpar."""

from contexts import batch, contexts, init, net

from d2lpar import get_params, train_batch


def replicas(params, X, y, num_devices, lr, steps=1):
    devices = contexts(num_devices)
    device_params = [get_params(params, device) for device in devices]
    for _ in range(steps):
        train_batch(X, y, device_params, devices, lr, net=net)
    return [[p.asnumpy() for p in params] for params in device_params]


def step(params, X, y, num_devices, lr, steps=1):
    return replicas(params, X, y, num_devices, lr, steps)[0]
