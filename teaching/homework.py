# %% [markdown]
# # Homework: one step on several devices, and when it pays
#
# | part | what | points | graded by |
# |---|---|---|---|
# | 1 | `split_batch`, `allreduce`, `ring`, `train_batch` | 44 | tests |
# | 2 | `batch_norm`: a layer that needs the whole batch | 10 | tests |
# | 3 | five broken steps | 10 | tests, after you hand in |
# | 4 | a break-even, measured | 6 and 20 | tests, and a person |
# | 5 | a derivation | 10 | a person |
#
# Your code goes in place of each `raise NotImplementedError`. You need NumPy,
# Matplotlib and pytest. Test what you have, in this folder, as often as you like:
#
#     python -m pytest --tb=line test_homework.py
#
# A device is a process, as in MPI and in PyTorch's gloo. Each of n processes calls
# your function, with its number `rank` from 0 to n - 1 and *its own* arrays, which
# are NumPy's. What other devices have must be sent, in rounds:
#
#     copy = exchange(array, to)
#
# sends an array to the device `to`, and returns the array that arrives from another
# device in this round, or None. `exchange()` sends nothing, and may receive. In a
# round each device sends one array at most and receives one at most. A round ends
# when all devices have called `exchange` that have not returned. "In place" means
# that you write into the array, as by `x[:] = y` or `x += y`; `x = y` only renames.
#
# The tests draw their numbers in each run. Each device has 10 seconds of CPU time for
# a test, which is enough for loops over rows. A test runs only those definitions of
# this file that a function needs, so measurements may stand anywhere.
#
# ## Part 1: four functions (44 points)

# %%
import numpy


# %%
def split_batch(rank, n, X, y):
    """The rows of this device, of a batch that all devices have read: (X_k, y_k).

    In order; lengths differ by at most one, the longer ones come first, and some may be
    empty. Rows 0 to 2 of 5 belong to device 0 of 2.
    """
    raise NotImplementedError("write split_batch")


# %%
def allreduce(rank, n, array, exchange):
    """Replace the array of each device by the sum of all, in place, in any way.

    The array may have any shape, () included.
    """
    raise NotImplementedError("write allreduce")


# %%
def ring(rank, n, array, exchange):
    """The same in a ring, for arrays of one axis: device k sends only to (k + 1) % n.

    At most 2 (n - 1) rounds, in which no device sends more than 2 (n - 1) parts. A part
    has the length of device 0's part, if n devices split the array as `split_batch`.
    """
    raise NotImplementedError("write ring")


# %%
def train_batch(rank, n, X, y, params, lr, gradient, exchange):
    """One step of minibatch SGD on the rows of all devices, in place in `params`.

    X and y are the rows of this device; devices have different numbers of rows, and
    some have none. gradient(X, y, params) is a list of arrays like `params`, summed
    over the rows. The step is p -= lr / m * g, with g summed over the m rows of all
    devices.
    """
    raise NotImplementedError("write train_batch")


# %% [markdown]
# ## Part 2: batch normalisation (10 points)


# %%
def batch_norm(rank, n, X, exchange):
    """Mean and variance of each column over the rows of all devices: (mean, variance).

    X (rows, d) are the rows of this device, or none. The variance is the mean squared
    distance from the mean. Send sums, not rows: at most 3 (n - 1) (2 d + 1) numbers.
    """
    raise NotImplementedError("write batch_norm")


# %% [markdown]
# ## Part 3: five broken steps (10 points)
#
# Each of these is meant to be `train_batch`, and each has one mistake.


# %%
def step_a(rank, n, X, y, params, lr, gradient, exchange):
    grads = gradient(X, y, params)
    rows = numpy.array([len(X)])
    allreduce(rank, n, rows, exchange)
    for p, g in zip(params, grads):
        allreduce(rank, n, g, exchange)
        p = p - lr / rows * g


def step_b(rank, n, X, y, params, lr, gradient, exchange):
    grads = gradient(X, y, params)
    rows = numpy.array([len(X)])
    allreduce(rank, n, rows, exchange)
    for _ in params:
        for g in grads:
            allreduce(rank, n, g, exchange)
    for p, g in zip(params, grads):
        p -= lr / rows * g


def step_c(rank, n, X, y, params, lr, gradient, exchange):
    grads = gradient(X, y, params)
    for p, g in zip(params, grads):
        g /= max(len(X), 1)
        allreduce(rank, n, g, exchange)
        p -= lr / n * g


def step_d(rank, n, X, y, params, lr, gradient, exchange):
    grads = gradient(X, y, params)
    rows = numpy.array([len(X)])
    allreduce(rank, n, rows, exchange)
    for p, g in zip(params, grads):
        p -= lr / rows * g


def step_e(rank, n, X, y, params, lr, gradient, exchange):
    if len(X) == 0:
        return
    grads = gradient(X, y, params)
    rows = numpy.array([len(X)])
    allreduce(rank, n, rows, exchange)
    for p, g in zip(params, grads):
        allreduce(rank, n, g, exchange)
        p -= lr / rows * g


# %%
def diagnosis(step):
    """The number of the mistake of the step "a", "b", "c", "d" or "e".

    1. Replicas differ after the step, because gradients are not summed.
    2. A gradient is summed more than once.
    3. The parameters do not change.
    4. The learning rate is too small by a factor of n, for any split of the rows.
    5. Rows of a device with few rows count more than those of others.
    6. It is wrong only if a device has no rows.
    7. Gradients of the step before are added.
    """
    raise NotImplementedError("write diagnosis")


# %% [markdown]
# ## Part 4: a break-even (6 and 20 points)
#
# Seconds differ from step to step, so one measurement of each does not tell which is
# faster. Let one device and two devices take turns, and look at the logarithms of the
# ratios, one / two, of t turns. Two devices *win* if t is at least 4 and the 95 %
# interval of their mean is above 0: mean - T95[t] * s / sqrt(t) > 0, where s is their
# standard deviation, with t - 1 in its denominator.

# %%
T95 = {4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}


def break_even(batches, one, two):
    """The smallest of `batches` from which on two devices win, or None.

    one[i] and two[i] are the seconds of t turns (1 to 10) with the batch batches[i].
    The batches increase, and two devices must also win at all larger ones.
    """
    raise NotImplementedError("write break_even")


# %% [markdown]
# **Measure** (20 points, graded by a person). This measures steps of your
# `train_batch` with a network of one hidden layer, on one device and on two, in
# turns:
#
#     from exercises import seconds
#     one, two = seconds("homework.py", batch=256, turns=8)
#
# Do so for at least five batches from 16 rows on. Hand in the machine and its cores,
# a picture of medians and ranges, what `break_even` returns, and half a page: what a
# step costs with any batch, what grows with the batch, what the second device adds,
# and which experiment would refute your explanation. To return None is no mistake.
#
# ## Part 5: who divides by what? (10 points)
#
# Device k has n_k of n rows, and m_k is the *mean* gradient of its rows. Derive the
# mean gradient of the batch. By how much does the plain average of the m_k miss it,
# on two devices with n_1 > n_2? For which gradients is it right in spite of uneven
# shards? Does `train_batch` need the n_k of other devices?
