"""Part 1 of the homework in PyTorch: two processes, and a device is a process.

    python -m pytest test_homework_pytorch.py

Fill in the four functions. Each process calls them with the same arguments, after
``distributed.init_process_group("gloo")``. `distributed.all_reduce`, or `send` and
`recv`, may carry the sum; `DistributedDataParallel` is not needed. 10 points each.
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
    """
    raise NotImplementedError("write split_batch")


def train_batch(X, y, params, lr, loss):
    """One step of minibatch SGD on the batch (X, y), by your functions from above.

    ``loss(X, y, params)`` is the *sum* of the losses of some rows. The step is ``p -=
    lr / n * gradient``, with the gradient of all n rows of this batch; each process
    computes the losses of its own rows only.
    """
    raise NotImplementedError("write train_batch")
