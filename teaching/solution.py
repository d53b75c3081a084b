"""The homework's solution: `make students` puts it into the graders' notebooks."""

from d2lpar import autograd


def get_params(params, device):
    new_params = [p.copyto(device) for p in params]
    for p in new_params:
        p.attach_grad()
    return new_params


def allreduce(data):
    for other in data[1:]:
        data[0][:] += other.copyto(data[0].ctx)
    for other in data[1:]:
        data[0].copyto(other)


def split_batch(X, y, devices):
    size, longer = divmod(len(X), len(devices))
    X_shards, y_shards, start = [], [], 0
    for k, device in enumerate(devices):
        stop = start + size + (k < longer)
        X_shards.append(X[start:stop].as_in_ctx(device))
        y_shards.append(y[start:stop].as_in_ctx(device))
        start = stop
    return X_shards, y_shards


def train_batch(X, y, device_params, devices, lr, net, loss):
    shards = zip(*split_batch(X, y, devices), device_params)
    with autograd.record():
        losses = [loss(net(X_k, params), y_k) for X_k, y_k, params in shards]
    for l in losses:
        l.backward()
    for grads in zip(*[[p.grad for p in params] for params in device_params]):
        allreduce(list(grads))
    for params in device_params:
        for p in params:
            p -= lr / len(X) * p.grad
