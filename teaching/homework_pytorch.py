"""The homework in PyTorch: a device is a process. 70 of the 100 points are by tests.

    python -m pytest --tb=line test_homework_pytorch.py

Hand in this file in place of `homework.py`, where the exercises stand, and more about
`combine`, `break_even`, `cgls` and `int8`, the last two of which are a choice. The
points are the same. One to seven processes call each function at once, after
``distributed.init_process_group("gloo")``. `distributed.all_reduce`, or `send` and
`recv`, may carry a sum; `DistributedDataParallel` is not needed. Arguments stay as they
are, unless the text says that you change them.
"""


def get_params(params):
    """The NumPy arrays `params` as a list of tensors, copies that require gradients."""
    raise NotImplementedError("write get_params")


def allreduce(tensor):
    """Replace the numbers of the tensor by the sums over all processes, in place."""
    raise NotImplementedError("write allreduce")


def split_batch(X, y):
    """The rows of X and y (tensors, n rows) that belong to this process, in order.

    The lengths of the shards differ by at most one, and the longer ones come first.
    There is at least one row for each process.
    """
    raise NotImplementedError("write split_batch")


def train_batch(X, y, params, lr, loss):
    """One step of minibatch SGD on the batch (X, y), by your functions from above.

    ``loss(X, y, params)`` is the *sum* of the losses of some rows, on this process. The
    step is ``p -= lr / n * gradient``, with the gradient of all n rows of this batch;
    each process computes the losses of its own rows only. The next step has the same
    tensors `params`.
    """
    raise NotImplementedError("write train_batch")


def combine(mean, count):
    """The mean gradient over the rows of all processes, a tensor (d,), on each process.

    `mean` (d,) is the mean gradient of the `count` rows of this process. Without a row
    it is 0 / 0, which is nan. The nan or inf of a process with rows is not hidden.
    """
    raise NotImplementedError("write combine")


def break_even(batches, one, two):
    """The smallest of `batches` from which on two devices win, or None."""
    raise NotImplementedError("write break_even")


def cgls(shard, num_steps):
    """Solve least squares over the rows of all processes: x (d,), on each of them.

    Take `num_steps` steps of CGLS from x = 0. `shard.b` (n_k,) are rows of this
    process, ``shard.times(x)`` is A_k x and ``shard.transposed(r)`` is A_k^T r, all
    tensors. Call each of the two at most num_steps + 1 times.
    """
    raise NotImplementedError("write cgls")


def int8(W):
    """Quantise the NumPy array W with one scale per row, as in homework.py."""
    raise NotImplementedError("write int8")
