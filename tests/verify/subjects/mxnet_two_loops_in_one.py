"""all-reduce in one loop that adds and copies: the first devices miss a part."""

from contexts import (
    allreduce_gradients,
    backward,
    batch,
    contexts,
    get_params,
    init,
    sgd,
)


def allreduce(data):
    for i in range(1, len(data)):
        data[0][:] += data[i].copyto(data[0].ctx)
        data[0].copyto(data[i])


def replicas(params, X, y, num_devices, lr):
    devices = contexts(num_devices)
    device_params = [get_params(params, device) for device in devices]
    backward(X, y, device_params, devices)
    allreduce_gradients(device_params, allreduce)
    sgd(device_params, lr, len(X))
    return [[p.asnumpy() for p in params] for params in device_params]


def step(*arguments):
    return replicas(*arguments)[0]
