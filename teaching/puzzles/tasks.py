"""Fourteen puzzles. Copy a function to a file of your own, and fill it in there.

    python -m teaching.puzzles my_solutions.py

runs each function of the file once for each of n devices, with n from one to eight. A
device is a process. `rank` is its number, from 0 on. What the others have must be sent,
in rounds: ::

    copy = exchange(array, to)

sends an array of this device to the device `to`, and returns what arrives from another
device in this round, or None. ``exchange()`` sends nothing, and may receive. A device
sends one array at most in a round, and receives one at most. A round ends when all
devices have called `exchange` that have not yet returned. Arrays are NumPy's, and all
of NumPy works. Messages have the dtype of the device's arrays. "In place" means that
you write into the array, as by ``x[:] = y``.

Targets are the rounds, and the bytes over the busiest link: the most that one device
sends in all, or receives in all, in units of the device's array. Part k of an array is
that of puzzle 1. A solution may call solutions of other puzzles.
"""


def split_unevenly(rank, n, size):
    """1. The part of device `rank`, if an array of `size` is split over n devices.

    Return (start, stop). Lengths differ by at most one, the longer ones come first, and
    some may be 0. Example: for 10 numbers on 3 devices (0, 4), (4, 7) and (7, 10).
    """
    raise NotImplementedError


def central(rank, n, array, exchange):
    """2. All-reduce through device 0, as in the book: every array becomes the sum.

    In place; each message is sent by device 0 or to it. Targets: 2 (n - 1) rounds,
    n - 1 arrays. Example: [1, 2] and [3, 4] both become [4, 6].
    """
    raise NotImplementedError


def tree(rank, n, array, exchange):
    """3. All-reduce by a tree: pairs add, then pairs of pairs, and the sum goes back.

    In place. Targets, with log2 n rounded up: 2 log2 n rounds, log2 n arrays.
    Example with 4 devices: 1 sends to 0 while 3 sends to 2; then 2 sends to 0.
    """
    raise NotImplementedError


def recursive_doubling(rank, n, array, exchange):
    """4. All-reduce in log2 n rounds: in each round, pairs exchange what they have.

    In place. Targets: log2 n rounds and arrays. If n is no power of 2, let m be the
    largest power below it: devices from m on send their arrays away first and get the
    sum last, in log2 m + 2 rounds and arrays. Example: 0 and 1, and 2 and 3; then 0 and
    2, and 1 and 3.
    """
    raise NotImplementedError


def reduce_scatter(rank, n, array, exchange):
    """5. Reduce-scatter: device k ends with part k of the sum, in part k of its array.

    The other parts may hold anything. Targets: n - 1 rounds, n - 1 of the longest
    parts. Example: [1, 2] and [3, 4] become [4, anything] and [anything, 6].
    """
    raise NotImplementedError


def all_gather(rank, n, array, exchange):
    """6. All-gather: at first part k is right on device k only, at the end everywhere.

    In place. Targets as in puzzle 5. Example: [4, 0] and [0, 6] both become [4, 6].
    """
    raise NotImplementedError


def ring(rank, n, array, exchange):
    """7. All-reduce in a ring: device k sends to k + 1 only, the last device to 0.

    In place. Targets: 2 (n - 1) rounds, 2 (n - 1) of the longest parts.
    Example with 3 devices: first 0 sends part 2, 1 sends part 0, and 2 sends part 1.
    """
    raise NotImplementedError


def zero1(rank, n, param, grad, velocity, lr, exchange):
    """8. ZeRO's first stage: each device keeps the velocity of its part only.

    `velocity` is as long as part `rank`. With g the sum of the gradients, each element
    gets v = 0.9 v + g and p = p - lr v on one device only; then all get the new
    parameters. In place. Targets as in puzzle 7. Example: params [1, 1] twice, grads
    [1, 0] and [1, 2], velocities 0 and lr 0.5 become velocities [2] and [2], params 0.
    """
    raise NotImplementedError


def local_sgd(rank, n, w, gradient, lr, num_steps, between, exchange):
    """9. Local SGD: every device steps alone; now and then all take the mean.

    gradient(w) is that of this device's samples. Do `num_steps` of w = w - lr *
    gradient. After every `between` steps, and after the last one, replace all w by
    their mean, in place. Targets: those of puzzle 7 for each mean.
    Example: 5 steps with between = 2 take the mean after steps 2, 4 and 5.
    """
    raise NotImplementedError


def fsdp(rank, n, shards, size, gradient, lr, exchange):
    """10. Fully sharded data parallelism: each device keeps a part of each layer.

    shards[l] is part `rank` of layer l, which has `size` numbers. gradient(l, w) is the
    gradient of this device's samples, for all parameters w of layer l. Take one step of
    w = w - lr * g, in place in the shards, with g the sum of all gradients. Targets:
    for each layer those of puzzles 6 and 5. Example: shards [1] and [2], gradients
    [4, 0] and [0, 8] and lr 0.5 become [-1] and [-2].
    """
    raise NotImplementedError


def clip(rank, n, shard, most, exchange):
    """11. Clip a gradient in parts by the norm of the whole.

    If the norm of all shards together is above `most`, multiply each by most / norm, in
    place. Targets: 2 (n - 1) rounds and *numbers*. Example: [3] and [4] with most = 1
    become [0.6] and [0.8].
    """
    raise NotImplementedError


def least_squares(rank, n, gram, x, exchange):
    """12. Averaging least squares, so that the average is right.

    This device has solved its rows A, b: x (d,) has the least ||A x - b||, and gram
    (d, d) is A^T A. Return the x for the rows of all devices.
    Example: with d = 1, grams [[1]] and [[3]], x [0] and [4], it is [3], not [2].
    """
    raise NotImplementedError


# Two functions with a bug each: repair them.


def rebinding(rank, n, array, exchange):
    """13. The book's all-reduce for PyTorch, printed in 2021: one device gets the sum.

    A reader found the bug: https://github.com/d2l-ai/d2l-zh/pull/955. Task and targets
    are those of puzzle 2.
    """
    for k in range(1, n):
        copy = exchange(array, 0) if rank == k else exchange()
        if rank == 0:
            array += copy
    for k in range(1, n):
        copy = exchange(array, k) if rank == 0 else exchange()
        if rank == k:
            array = copy


def who_divides(rank, n, total, count, exchange):
    """14. The mean gradient of a batch; for 13 samples on 2 devices it is wrong.

    `total` (d,) is the sum of the gradients of this device's `count` samples. Return
    the mean over all samples. A device may have none.
    """
    mean = total / count
    everything = mean.copy()
    for turn in range(1, n):
        everything += exchange(mean, (rank + turn) % n)
    return everything / n
