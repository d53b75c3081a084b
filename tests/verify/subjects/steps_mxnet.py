"""Steps of MXNet on several contexts, by the variable D2LPAR_PROGRAM.

Each program is right, or has one mistake; programs.py says which.
"""

import os

import numpy

from d2lpar import autograd, get_params, gluon, init_lenet, lenet_concise, mx, np, npx
from d2lpar import train_batch as d2lpar_train_batch
from d2lpar.lenet.network import get_host_params

PROGRAM = os.environ.get("D2LPAR_PROGRAM", "train_batch")
DTYPE = os.environ.get("D2LPAR_DTYPE", "float32")
EVEN = PROGRAM == "book"  # split_and_load splits no other
LENET = PROGRAM == "lenet_concise"
TRAINER = {"trainer", "step_of_shard", "step_of_one", "mean_loss", "norm_of_all"}
loss = gluon.loss.SoftmaxCrossEntropyLoss()
kept = {}  # the replicas, by the number of devices


def init(seed):
    if LENET:
        return init_lenet(0.1, seed=seed)
    rng = numpy.random.default_rng(seed)
    shapes = {"batch_norm": ((6, 8), (8, 3)), "untied": ((6, 6),)}
    shapes = shapes.get(PROGRAM, ((6, 8), (8,), (8, 3), (3,)))
    params = [rng.normal(0, 0.5, shape).astype(DTYPE) for shape in shapes]
    return params * 2 if PROGRAM == "untied" else params


def batch(n, seed):
    rng = numpy.random.default_rng(seed)
    if LENET:
        return rng.random((n, 1, 28, 28), "float32"), rng.integers(0, 10, n, "int32")
    return rng.normal(size=(n, 6)).astype(DTYPE), rng.integers(0, 3, n, "int32")


def net(X, params):
    if PROGRAM == "untied":
        return np.dot(np.tanh(np.dot(X, params[0])), params[1])[:, :3]
    if PROGRAM == "batch_norm":  # of each context's rows
        h = np.dot(X, params[0])
        return np.dot(np.tanh((h - h.mean(0)) / np.sqrt(h.var(0) + 1e-5)), params[1])
    W1, b1, W2, b2 = params
    return np.dot(npx.relu(np.dot(X, W1) + b1), W2) + b2


def allreduce(data):
    for i in range(1, len(data)):
        data[0][:] += data[i].copyto(data[0].ctx)
        if PROGRAM == "two_loops_in_one":
            data[0].copyto(data[i])
    for i in range(1, len(data)):
        if PROGRAM == "rebinding":
            data[i] = data[0].copyto(data[i].ctx)
        elif PROGRAM != "two_loops_in_one":
            data[0].copyto(data[i])


def split_batch(X, y, devices):
    """The shards, without empty ones: fewer than devices if there are fewer rows."""
    X, y = np.array(X, dtype=DTYPE), np.array(y)
    X_shards = gluon.utils.split_and_load(X, devices, even_split=PROGRAM == "book")
    y_shards = gluon.utils.split_and_load(y, devices, even_split=PROGRAM == "book")
    busy = min(len(X), len(devices))
    return X_shards[:busy], y_shards[:busy]


def backward(X, y, forwards, devices):
    with autograd.record():
        shards = zip(*split_batch(X, y, devices), forwards)
        losses = [loss(forward(X_k), y_k) for X_k, y_k, forward in shards]
        if PROGRAM == "mean_loss":
            losses = [l.mean() for l in losses]
    for l in losses:
        l.backward()


def scale_to(grads, clip_norm):
    """Scale gradients in place so that their norm together is at most `clip_norm`."""
    total = sum(float((g**2).sum()) for g in grads) ** 0.5
    for g in grads:
        g *= min(1, clip_norm / total)


def train(replicas, X, y, devices, lr):
    """One step of d2l's training from scratch."""
    backward(X, y, [lambda X, own=own: net(X, own) for own in replicas], devices)
    if PROGRAM != "untied" or len(devices) > 1:
        for grads in zip(*([p.grad for p in own] for own in replicas)):
            allreduce(list(grads))
    for own in replicas:
        for p in {id(p): p for p in own}.values():
            p[:] -= lr / len(X) * p.grad


def replicas_of(params, devices):
    if PROGRAM == "untied":  # two arrays on several devices
        copies = [[np.array(p, dtype=DTYPE, ctx=d) for p in params] for d in devices]
        if len(devices) == 1:
            copies = [[copies[0][0]] * 2]
    elif PROGRAM == "idle_device" and len(devices) in kept:
        copies = kept[len(devices)]
        for own in copies:
            for p, value in zip(own, params):
                p[:] = value
        return copies
    else:
        copies = [[np.array(p, dtype=DTYPE, ctx=d) for p in params] for d in devices]
    for own in copies:
        for p in own:
            p.attach_grad("add" if PROGRAM == "grad_add" else "write")
    kept[len(devices)] = copies
    return copies


def with_trainer(params, X, y, devices, lr, steps, clip_norm):
    """d2l's concise training: a Trainer, whose step gets the global batch size."""
    block = gluon.nn.HybridSequential()
    block.add(gluon.nn.Dense(8, activation="relu", in_units=6, dtype=DTYPE))
    block.add(gluon.nn.Dense(3, in_units=8, dtype=DTYPE))
    block.initialize(mx.init.Zero(), ctx=devices)
    own = list(block.collect_params().values())
    for p, value in zip(own, params):
        p.set_data(np.array(value.T if value.ndim == 2 else value, dtype=DTYPE))
    how = {"learning_rate": lr}
    trainer = gluon.Trainer(block.collect_params(), "sgd", how, update_on_kvstore=False)
    size = {"step_of_shard": max(1, len(X) // len(devices)), "step_of_one": 1}
    for _ in range(steps):
        backward(X, y, [block] * len(devices), devices)
        trainer.allreduce_grads()
        if clip_norm is not None:
            of_all = [[p.grad(device) for p in own] for device in devices]
            if PROGRAM == "norm_of_all":
                of_all = [sum(of_all, [])]
            for grads in of_all:
                scale_to(grads, clip_norm * len(X))
        trainer.update(size.get(PROGRAM, len(X)), ignore_stale_grad=True)
    values = [p.data(devices[0]).asnumpy() for p in own]
    return [v.T if v.ndim == 2 else v for v in values]


def replicas(params, X, y, num_devices, lr, steps=1, clip_norm=None):
    devices = [mx.cpu(k) for k in range(num_devices)]
    if clip_norm is not None and PROGRAM not in ("trainer", "norm_of_all"):
        raise NotImplementedError("it does not clip")
    if PROGRAM in TRAINER:
        return [with_trainer(params, X, y, devices, lr, steps, clip_norm)] * num_devices
    if LENET:
        block, trainer, own = lenet_concise.build(params, devices, lr)
        for _ in range(steps):
            lenet_concise.train_batch(X, y, block, devices, trainer, loss=own)
        return [get_host_params(block)] * num_devices
    if PROGRAM == "train_batch":  # the four functions of d2lpar
        copies = [get_params([np.array(p) for p in params], d) for d in devices]
        for _ in range(steps):
            d2lpar_train_batch(X, y, copies, devices, lr, net=net)
    else:
        copies = replicas_of(params, devices)
        for _ in range(steps):
            train(copies, X, y, devices, lr)
    return [[p.asnumpy() for p in own] for own in copies]


def step(params, X, y, num_devices, lr, steps=1, clip_norm=None):
    return replicas(params, X, y, num_devices, lr, steps, clip_norm)[0]
