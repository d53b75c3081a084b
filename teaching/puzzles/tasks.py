"""Eleven puzzles. Copy a function to a file of your own, and fill it in there.

    python -m teaching.puzzles my_solutions.py

runs it once for each of n devices, with n from one to eight. A device is a process, and
`rank` is its number, from 0 on. What the others have must be sent, in rounds: ::

    copy = exchange(array, to)

sends an array to the device `to`, and returns what arrives from another device in this
round, or None. ``exchange()`` sends nothing, and may receive. A device sends one array
at most in a round, and receives one at most. A round ends when all devices have called
`exchange` that have not yet returned. All of NumPy works. Messages have the dtype of
the arrays. "In place" means that you write into the array, as by ``x[:] = y``.

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


def reduce_scatter(rank, n, array, exchange):
    """4. Reduce-scatter: device k ends with part k of the sum, in part k of its array.

    The other parts may hold anything. Targets: n - 1 rounds, n - 1 of the longest
    parts. Example: [1, 2] and [3, 4] become [4, anything] and [anything, 6].
    """
    raise NotImplementedError


def all_gather(rank, n, array, exchange):
    """5. All-gather: at first part k is right on device k only, at the end everywhere.

    In place. Targets as in puzzle 4. Example: [4, 0] and [0, 6] both become [4, 6].
    """
    raise NotImplementedError


def ring(rank, n, array, exchange):
    """6. All-reduce in a ring: device k sends to k + 1 only, the last device to 0.

    In place. Targets: 2 (n - 1) rounds, 2 (n - 1) of the longest parts.
    Example with 3 devices: first 0 sends part 2, 1 sends part 0, and 2 sends part 1.
    """
    raise NotImplementedError


def zero1(rank, n, param, grad, velocity, lr, exchange):
    """7. ZeRO's first stage: each device keeps the velocity of its part only.

    `velocity` is as long as part `rank`. With g the sum of the gradients, each element
    gets v = 0.9 v + g and p = p - lr v on one device only; then all get the new
    parameters. In place. Targets as in puzzle 6. Example: params [1, 1] twice, grads
    [1, 0] and [1, 2], velocities 0 and lr 0.5 become velocities [2] and [2], params 0.
    """
    raise NotImplementedError


def clip(rank, n, shard, most, exchange):
    """8. Clip a gradient in parts by the norm of the whole.

    If the norm of all shards together is above `most`, multiply each by most / norm, in
    place. Targets: 2 (n - 1) rounds and *numbers*. Example: [3] and [4] with most = 1
    become [0.6] and [0.8].
    """
    raise NotImplementedError


def least_squares(rank, n, gram, x, exchange):
    """9. Averaging least squares, so that the average is right.

    This device has solved its rows A, b: x (d,) has the least ||A x - b||, and gram
    (d, d) is A^T A. Return the x for the rows of all devices.
    Example: with d = 1, grams [[1]] and [[3]], x [0] and [4], it is [3], not [2].
    """
    raise NotImplementedError


def rebinding(rank, n, array, exchange):
    """10. The book's all-reduce for PyTorch, printed in 2021: one device gets the sum.

    Repair it: https://github.com/d2l-ai/d2l-zh/pull/955 has the bug. Task and targets
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
    """11. The mean gradient of a batch; for 13 samples on 2 devices it is wrong.

    Repair it. `total` (d,) is the sum of the gradients of this device's `count`
    samples. Return the mean over all samples. A device may have none.
    """
    mean = total / count
    everything = mean.copy()
    for turn in range(1, n):
        everything += exchange(mean, (rank + turn) % n)
    return everything / n
