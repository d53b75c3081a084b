# %% [markdown]
# # Homework: one step on several devices, and when it pays
#
# | part | what | points | graded by |
# |---|---|---|---|
# | 1 | four functions of data parallelism | 40 | tests |
# | 2 | uneven shards: a function and a derivation | 20 | tests (10), a person (10) |
# | 3 | the break-even of your machine, measured | 30 | tests (10), a person (20) |
# | 4 | one function of your choice | 10 | tests |
#
# Your code goes in place of each `raise NotImplementedError`. Test what you have, in
# this folder or by a notebook's cells, as often as you like:
#
#     python -m pytest --tb=line test_homework.py
#
# You need NumPy and pytest, and for part 3 two functions of d2lpar. `place(k, array)`
# returns a copy of a NumPy array on device k. A call of `exchange` is a round: it
# takes pairs (array, to), at most one from a device and one to a device, and returns
# the copies that arrive, in this order:
#
#     at_1, at_2 = exchange([(data[0], 1), (data[1], 2)])
#
# What works with an array x of a device, together with other arrays of *this* device
# and with plain numbers:
#
# | | |
# |---|---|
# | read a part | `x[2:4]`, `x[0]`, `x[:, None]`: views, as in NumPy |
# | write | `x[:] = y`, `x[...] = y`, `x[2:4] += y`, `x -= y`, `x[x < 0] = 0` |
# | compute | `+ - * / **`, `<`, `abs(x)`, `numpy.sqrt(x)`, `numpy.minimum(x, 1)` |
# | inner product | `x @ y`, or `(x * y).sum()`: an array without axes, on the device |
# | ask | `len(x)`, `x.shape`, `x.size`, `x.dtype`, `x.device`, `print(x)` |
# | copy | `x.copy()` on the same device |
#
# The tests run your functions in another process, for at most 20 seconds each. They
# compare values with NumPy's. The numbers differ in each run. Arrays and lists that you
# are given stay as they are, unless the text says that you change them. Any way to sum
# by `exchange` has full points. All parts may be handed in as `homework_pytorch.py`
# instead, in which processes are devices.
#
# ## Part 1: four functions (40 points)
#
# These are the functions of chapter 1, `multiple_gpus`. Write them without looking at
# it.

# %%
import numpy

from d2lpar.records.comparison import compare, summarize


# %%
def get_params(params, k, place):
    """A replica on device k: copies of the NumPy arrays `params`, and their gradients.

    Returns two lists of arrays on device k, the copies, and zeros of the same shapes
    and dtypes, to which `backward` (below) adds gradients.
    """
    raise NotImplementedError("write get_params")


# %%
def allreduce(data, exchange):
    """Replace the numbers in each array of the list `data` by the sum of all arrays.

    ``data[k]``, of any shape, is on device k and stays there: change the arrays, not
    the list.
    """
    raise NotImplementedError("write allreduce")


# %%
def split_batch(X, y, num_devices, place):
    """Split the n rows of NumPy's `X` and `y` over N devices, in order; n >= N.

    Returns two lists, of N shards of X and of N shards of y, each on its device. Their
    lengths differ by at most one, and the first ones are the longer ones.
    """
    raise NotImplementedError("write split_batch")


# %%
def train_batch(X, y, replicas, lr, backward, place, exchange):
    """One step of minibatch SGD on the batch (X, y), by your functions from above.

    ``replicas[k]`` is what `get_params` has returned for device k. ``backward(X_k, y_k,
    *replicas[k])``, with rows on the same device, *adds* the gradients of the summed
    losses of these rows to the replica's gradients. The step of every replica is ``p -=
    lr / n * gradient``: the gradient is summed over all n rows of this batch, and each
    device computes the gradient of its own rows only.
    """
    raise NotImplementedError("write train_batch")


# %% [markdown]
# ## Part 2: uneven shards (20 points)
#
# Many losses are means, so each device has the *mean* gradient of its own rows. The
# last batch of an epoch rarely divides evenly, and a device may even have no row at
# all.


# %%
def combine(means, counts):
    """The mean gradient over all rows, as a NumPy array (d,).

    ``means[k]`` (d,) is device k's mean gradient over its ``counts[k]`` rows. A device
    without a row has the mean 0 / 0, which is nan. At least one device has a row. The
    nan or inf of a device with rows has diverged, and is not hidden.
    """
    raise NotImplementedError("write combine")


# %% [markdown]
# ## Part 3: a break-even (30 points)
#
# Speed varies from step to step, so two medians do not yet make a difference. Two
# devices *win* at a batch if they are faster by the rule of chapter 4, `timing`. For
# two lists of seconds a and b that one process measured in turn, the rule is
#
#     found = compare(summarize(a, in_turn=True), summarize(b, in_turn=True))
#
# `found.ratio` says how many times as long a takes as b. `found.is_told` says whether
# the rule tells them apart, by a rank test and a factor of more than 1.15.


# %%
def break_even(batches, one, two):
    """The smallest of `batches` from which on two devices win, or None.

    ``one[i]`` and ``two[i]`` are lists of measured seconds per step with the batch
    ``batches[i]``; `batches` is increasing. Two devices must also win at all larger
    batches of the list.
    """
    raise NotImplementedError("write break_even")


# %% [markdown]
# ## Part 4: one of two (10 points)
#
# Write `cgls` or `int8`, whichever you like. Leave the other one as it is: if you write
# both, `cgls` is graded.
#
# `cgls` is the method of conjugate gradients on least squares. An inner product of
# vectors that have a part on each device is a sum over devices: `allreduce` sums arrays
# without axes, too.


# %%
def cgls(shards, num_steps, exchange):
    """Solve least squares over all rows: x after `num_steps` steps from x = 0.

    Returns a list of replicas of x (d,), one on each device. Shard k is on device k:
    `shard.b` is there, ``shard.times(x)`` is A_k x for an x there, and
    ``shard.transposed(r)`` is A_k^T r. Call each of the two at most num_steps + 1 times
    per shard.
    """
    raise NotImplementedError("write cgls")


# %%
def int8(W):
    """Quantise the NumPy array W (rows, d) with one scale per row.

    Returns (q, scales): q (rows, d) is int8, and the scales are (rows,) or (rows, 1).
    ``scale * q`` is within half a scale of the row, and the largest abs(q) of a row is
    127. A row of zeros stays zero, and its scale is finite.
    """
    raise NotImplementedError("write int8")


# %% [markdown]
# ## Exercises
#
# 1. (10 points; part 2) **Who divides by what?** Device k has n_k of n rows and the
#    mean gradient m_k of its rows. Derive the mean gradient of the batch. By how much
#    does the plain average of the m_k miss it, on two devices with n_1 > n_2? For which
#    gradients is it right in spite of uneven shards? Does a step of `train_batch` need
#    n_k?
# 2. (20 points; part 3) **Does a second device pay?** Measure steps of
#    `d2lpar.train_batch` on one context and on two, or of your PyTorch functions in one
#    process and in two, for at least five batches, at least ten times each after a
#    warm-up, in alternating order, with a clock that waits for the work. Report the
#    machine, a table of medians and ranges, and what `break_even` returns (10
#    points). Explain it in half a page: what is fixed per step, what grows with the
#    batch, what the second device adds, and what you would measure next to test your
#    explanation (10 points).
