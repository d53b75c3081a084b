"""Steps of LeNet from scratch and in Gluon, and distances of their ends.

Without PyTorch and d2l, so that GPU tests can use them beside any MXNet.
"""

import numpy

from d2lpar import init_lenet, train_batch
from d2lpar.lenet import concise as in_gluon
from d2lpar.parallel import get_params

# At 0.2 the recipe's first steps are chaotic in float32: a difference in the last bit
# grows a thousandfold in 20 steps; benchmarks/equivalence.py shows it.
LR = 0.02


def some_batches(n, steps, dtype="float32", seed=1):
    """Random images whose classes differ in brightness, so that there is a slope."""
    rng = numpy.random.default_rng(seed)
    for _ in range(steps):
        y = rng.integers(0, 10, n).astype("int32")
        X = rng.random((n, 1, 28, 28)) * (1 + y[:, None, None, None]) / 10
        yield X.astype(dtype), y


def params_of(dtype="float32"):
    # Larger than the book's 0.01, so that every layer has a gradient from the start.
    return [p.astype(dtype) for p in init_lenet(scale=0.1, seed=3)]


def scratch(contexts, n, steps, dtype="float32"):
    """Replicas after some steps, as host arrays: [device][parameter]."""
    replicas = [get_params(params_of(dtype), context) for context in contexts]
    for X, y in some_batches(n, steps, dtype):
        train_batch(X, y, replicas, contexts, LR)
    return [[p.asnumpy() for p in replica] for replica in replicas]


def concise(contexts, n, steps):
    net, trainer, loss = in_gluon.build(params_of(), contexts, LR)
    for X, y in some_batches(n, steps):
        in_gluon.train_batch(X, y, net, contexts, trainer, loss=loss)
    per_param = [p.list_data() for p in net.collect_params().values()]
    hosts = [[replica.asnumpy() for replica in replicas] for replicas in per_param]
    return [
        [values[k].T if values[k].ndim == 2 else values[k] for values in hosts]
        for k in range(len(contexts))
    ]


def distance(a, b):
    """Relative distance of two lists of parameters, in the 2-norm over all of them."""
    a, b = (numpy.concatenate([p.ravel() for p in params]) for params in (a, b))
    return numpy.linalg.norm(a - b) / numpy.linalg.norm(b)
