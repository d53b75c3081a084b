"""A tied weight that becomes two when parameters are copied to several devices."""

import numpy
from contexts import (
    DTYPE,
    allreduce_gradients,
    backward,
    batch,
    contexts,
    get_params,
    np,
)


def init(seed):
    W = numpy.random.default_rng(seed).normal(0, 0.5, (6, 6)).astype(DTYPE)
    return [W, W]


def net(X, params):
    first, second = params
    return np.dot(np.tanh(np.dot(X, first)), second)[:, :3]


def step(params, X, y, num_devices, lr):
    devices = contexts(num_devices)
    device_params = [get_params(params, device) for device in devices]
    if num_devices == 1:
        device_params = [[device_params[0][0]] * 2]
    backward(X, y, device_params, devices, net)
    if num_devices > 1:
        allreduce_gradients(device_params)
    for own in device_params:
        for p in {id(p): p for p in own}.values():
            p[:] -= lr / len(X) * p.grad
    return [p.asnumpy() for p in device_params[0]]
