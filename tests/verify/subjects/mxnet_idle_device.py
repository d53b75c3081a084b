"""Fewer samples than devices: the idle ones hold the gradient of the batch before."""

from contexts import (
    allreduce_gradients,
    backward,
    batch,
    contexts,
    get_params,
    init,
    sgd,
)

replicas_of = {}  # a number of devices


def step(params, X, y, num_devices, lr):
    devices = contexts(num_devices)
    if num_devices not in replicas_of:
        replicas_of[num_devices] = [get_params(params, device) for device in devices]
    device_params = replicas_of[num_devices]
    for own in device_params:
        for p, value in zip(own, params):
            p[:] = value
    backward(X, y, device_params, devices)
    allreduce_gradients(device_params)
    sgd(device_params, lr, len(X))
    return [p.asnumpy() for p in device_params[0]]
