# %% [markdown]
# # Least squares larger than memory
#
# Source: the least-squares notes, the run with more data,
# <https://github.com/Daegeun02/GPGPU> (`2022_05_03.ipynb`, in Korean)
#
# When A does not fit into memory, it stays in a file and is read in blocks: each device
# works through its rows while the next blocks are being read, and what must be summed
# is as short as before. So the memory needed does not depend on the number of rows.
#
#     python chapters/least_squares_large.py --devices auto --num-devices 1,2
#     d2lpar run least_squares_large --preset book     (8 GB in TMPDIR, some minutes)
#
# **What you will learn.**
#
# - how to check a published number without repeating the run;
# - conjugate gradients (CGLS) over blocks of a file, on several devices;
# - how to measure the memory of a computation, and what makes it grow;
# - what Dask does with the same problem, in time and in memory, and why its memory
#   grows in one formulation and not in another.
#
# ![Rows of A over devices](../docs/drawings/rows-over-devices.svg)

# %%
import importlib.util
import math
import tempfile

import numpy
from loky import ProcessPoolExecutor

from d2lpar import allreduce, chapter, datasets, devices, np
from d2lpar.least_squares import solve
from d2lpar.parallel import shares

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")

# %% [markdown]
# ## A published number, checked
#
# After 10,000 x 1,000 the notes run a larger problem: "the size of the data set
# increased by 100 times, to (100,000, 10,000)". They print an optimum of 90.83, and 9.0
# s for `numpy.linalg.lstsq`, where the smaller problem took 1.42 s.
#
# *Predict before you run*: b is uniform in [0, 1), with a variance of 1/12, and A has
# nothing to do with it. Each of the n columns can explain one of the m dimensions of b.
# What is left of ||A x - b||, at best?

# %%
for m, n, published in (
    (10_000, 1_000, "27.35"),
    (100_000, 10_000, "90.83"),
    (100_000, 1_000, "90.83"),
):
    print(f"{m:,} x {n:,}: sqrt((m - n) / 12) = {math.sqrt((m - n) / 12):.2f}", end="")
    print(f", the notes print {published}")

# %% [markdown]
# So the notes' second matrix had 1,000 columns, and ten times as much data, not a
# hundred times. The seconds agree: for 100,000 x 10,000, `lstsq` has 1,000 times the
# arithmetic of the first problem, and would not take 6 times as long. We solved both
# sizes: 100,000 x 1,000 leaves 90.90, and 100,000 x 10,000 leaves 86.44.
#
# The `book` preset has the size that the notes *name*, 8 GB of numbers. The cells below
# are smaller:

# %%
problem = datasets.uniform_file(rows=5_000, columns=50)
A, b = problem.A, problem.b
m, n = A.shape
print(f"{type(A).__name__} {A.shape}, {A.nbytes / 1e6:.0f} MB in a file")
at_once = solve(numpy.array(A), b, devices=two, method="cgls")
print(f"at once: {at_once.residual_norm:.9f}")
print(f"sqrt((m - n) / 12) = {math.sqrt((m - n) / 12):.1f}")

# %% [markdown]
# ## Blocks
#
# Device k owns a range of consecutive rows, and reads them `block_rows` at a time. A
# product with A, and the one with its transpose, need only one block in memory.
#
# `numpy.memmap` also reads from the file, but the pages that it has read count as the
# process's memory until the system needs them. A plain read does not keep them.


# %%
def rows_of(A, start, stop):
    """Rows start:stop of the file behind a memmap, as an array of their own."""
    with open(A.filename, "rb") as f:
        f.seek(A.offset + start * A.strides[0])
        return numpy.fromfile(f, count=(stop - start) * A.shape[1]).reshape(
            stop - start, -1
        )


def products(p, block_rows, b=None):
    """A^T A p and ||A p||^2; with b they are A^T (b - A p) and ||b - A p||^2."""
    ps = [np.array(p, dtype="float64", ctx=device) for device in two]
    sums = [np.zeros(n + 1, dtype="float64", ctx=device) for device in two]
    parts = shares(m, len(two))
    for first in range(0, -(-m // len(two)), block_rows):
        for k, part in enumerate(parts):
            start = min(part.start + first, part.stop)
            stop = min(start + block_rows, part.stop)
            if start == stop:
                continue  # this device has no row left
            block = np.array(rows_of(A, start, stop), dtype="float64", ctx=two[k])
            q = np.dot(block, ps[k])
            if b is not None:
                q = np.array(b[start:stop], dtype="float64", ctx=two[k]) - q
            sums[k][:n] += np.dot(block.T, q)
            sums[k][n] += (q * q).sum()
    allreduce(sums)
    total = sums[0].asnumpy()
    return total[:n], total[n]


# %% [markdown]
# CGLS is the loop of the previous chapter. It keeps three vectors of n numbers and
# never sees a row.
#
# *Predict before you run*: how many times is the file read? Does that depend on the
# size of the blocks?


# %%
def cgls_in_blocks(block_rows, tol=1e-10):
    x = numpy.zeros(n)
    s, _ = products(x, block_rows, b)
    p, gamma = s.copy(), s @ s
    start, passes = gamma, 1
    while gamma > tol**2 * start:
        product, square = products(p, block_rows)
        alpha, before = gamma / square, gamma
        x += alpha * p
        s -= alpha * product
        gamma = s @ s
        p = s + gamma / before * p
        passes += 1
    return x, passes


for block_rows in (100, 1_000):
    x, passes = cgls_in_blocks(block_rows)
    error = numpy.linalg.norm(A @ x - b)
    print(f"blocks of {block_rows:,} rows: {error:.9f} after {passes} passes")
    assert numpy.allclose(x, at_once.x, rtol=1e-8)

# %% [markdown]
# The package does the same, and a thread reads the next blocks while the devices work
# on the present ones (`d2lpar/least_squares/rows.py`). `resident_bytes=0` keeps no
# block on the devices, as is necessary when A does not fit into memory.

# %%
in_blocks = solve(
    A, b, devices=two, method="cgls", resident_bytes=0, block_bytes=8 * n * 1_000
)
print(f"in blocks {in_blocks.residual_norm:.9f}, at once {at_once.residual_norm:.9f}")
assert numpy.allclose(in_blocks.x, x, rtol=1e-8)

# %% [markdown]
# ## Time and memory, beside NumPy and Dask
#
# [Dask](https://docs.dask.org) splits an array into chunks too, builds a graph of tasks
# on them, and runs that on all cores. What does it do with this problem? Five ways to
# solve it, each in a fresh process, with A in a file of 160,000 and of 320,000 rows:
#
# - `numpy_lstsq` reads all of A;
# - `d2lpar_cgls` reads blocks, as above;
# - `dask_lstsq` is `dask.array.linalg.lstsq`, which is a TSQR;
# - `dask_two_products` computes A^T A and A^T b in one call, and solves the normal
#   equations;
# - `dask_one_product` puts b beside A first and computes [A b]^T [A b].
#
# Blocks and chunks have 2,500 rows, 2 MB. Memory is the peak of the process's resident
# memory (`VmHWM`) less what it had before the solve. (The functions import what they
# need themselves, because each runs in a process of its own.)
#
# *Predict before you run*: Which of the five need twice the memory for twice the rows?

# %%
STEP, COLUMNS = 2_500, 100


def numpy_lstsq(A, b):
    return numpy.linalg.lstsq(rows_of(A, 0, len(b)), b, rcond=None)[0]


def dask_array(A):
    """A as Dask's array of chunks, each read when it is needed."""
    import dask
    import dask.array as da

    starts = range(0, len(A), STEP)
    chunks = [dask.delayed(rows_of)(A, start, start + STEP) for start in starts]
    return da.concatenate([da.from_delayed(c, (STEP, COLUMNS), float) for c in chunks])


def dask_lstsq(A, b):
    import dask.array as da

    chunks = dask_array(A)
    return da.linalg.lstsq(chunks, da.from_array(b, chunks=STEP))[0].compute()


def dask_two_products(A, b):
    import dask

    chunks = dask_array(A)
    ends = dask.array.from_array(b, chunks=STEP)
    return numpy.linalg.solve(*dask.compute(chunks.T @ chunks, chunks.T @ ends))


def dask_one_product(A, b):
    import dask.array as da

    ends = da.from_array(b[:, None], chunks=(STEP, 1))
    chunks = da.concatenate([dask_array(A), ends], axis=1).rechunk({1: -1})
    G = (chunks.T @ chunks).compute()
    return numpy.linalg.solve(G[:-1, :-1], G[:-1, -1])


def d2lpar_cgls(A, b):
    from d2lpar.least_squares import solve

    limits = {"resident_bytes": 0, "block_bytes": 8 * STEP * COLUMNS}
    return solve(A, b, devices="cpu:2", method="cgls", **limits).x


# %%
def measure(way, path, b):
    """Seconds, MiB and ||A x - b|| of a way to solve; in a process of its own."""
    import time

    from d2lpar.machine.host import process_status

    A = numpy.load(path, mmap_mode="r")
    with tempfile.TemporaryDirectory() as folder:
        numpy.save(f"{folder}/few.npy", rows_of(A, 0, 2 * STEP))
        few = numpy.load(f"{folder}/few.npy", mmap_mode="r")
        way(few, b[: 2 * STEP])  # loads libraries, starts threads
    before, begin = process_status("VmRSS"), time.perf_counter()
    x = way(A, b)
    seconds = time.perf_counter() - begin
    mib = (process_status("VmHWM") - before) / 2**20
    return seconds, mib, numpy.linalg.norm(A @ x - b)


ways = [numpy_lstsq, d2lpar_cgls]
if importlib.util.find_spec("dask"):
    ways += [dask_lstsq, dask_two_products, dask_one_product]
else:
    print("skipped: Dask is not installed (pip install dask)")
for num_rows in (160_000, 320_000):
    large = datasets.uniform_file(num_rows, COLUMNS)
    print(f"{num_rows:,} x {COLUMNS}, {large.A.nbytes / 2**20:.0f} MiB:")
    for way in ways:
        with ProcessPoolExecutor(1) as fresh_process:
            task = fresh_process.submit(measure, way, large.A.filename, large.b)
            seconds, mib, error = task.result()
        print(f"  {way.__name__:18}{seconds:6.2f} s{mib:6.0f} MiB more  {error:.6f}")

# %% [markdown]
# **What grows, and why.** With Dask 2026.8 on 2 cores of an AMD EPYC, for 122 and for
# 244 MiB of A (seconds on a machine with other work to do):
#
# | | seconds | MiB more |
# |---|---|---|
# | `numpy_lstsq` | 1.31, 3.01 | 245, 491 |
# | `d2lpar_cgls` | 1.90, 3.03 | 10, 13 |
# | `dask_lstsq` | 0.94, 2.10 | 149, 283 |
# | `dask_two_products` | 0.24, 0.70 | 122, 248 |
# | `dask_one_product` | 0.17, 0.56 | 9, 14 |
#
# NumPy holds A and LAPACK's copy of it: twice the rows, twice the memory. Dask reads in
# chunks, and yet two of its three ways grow with the rows:
#
# - `dask_lstsq` keeps the Q of every chunk until the last triangle is known, because it
#   multiplies them by b only then;
# - `dask_two_products` runs one sum to its end before the other: it multiplies chunk by
#   chunk for A^T A, and keeps every chunk in memory for A^T b (a
#   `dask.callbacks.Callback` that prints the tasks shows that order);
# - `dask_one_product` frees a chunk after its one product. In our runs it took between
#   9 and 91 MiB, for 640,000 rows no more than for 160,000.
#
# So the library does not decide whether memory grows; the graph does. The scheduler
# sees tasks, not the intention that a chunk should be read twice rather than kept.
# Blocks by hand say so directly: CGLS reads the file once per pass, keeps nothing, and
# pays for that in time.
#
# **What the GPU wiki says of Dask.** The wiki
# (<https://github.com/likejazz/likejazz.github.io>, `_wiki/GPU-Data-Science.md`) turns
# to Dask when a T4's 14.7 GB are exceeded, and finds `dask_cudf.compute()` "very
# unstable": a computation that fails keeps its memory, and memory grows even when
# `compute()` is called without any task, until it is full. Its author later adds that
# this was probably because no cluster had been started (2022/11). That is about
# `dask_cudf` on a GPU, which was not tried here. Of Dask's arrays on a CPU we found
# neither: 200 calls of `compute()` on one graph left the process at 66 to
# 67 MiB, and during 50 calls that failed it went from 78 to 84. What grows here is the
# peak *within* a call, for the reasons above.

# %% [markdown]
# ## Which method?
#
# A matrix of (n, n) takes 0.8 GB for n = 10,000. With rows in blocks (measured for n =
# 3,000) `normal` needs 2.5 such matrices on one context, 4.6 on two, `tsqr` 11 and 14:
# that is 2.0, 3.7, 9 and 11 GB. Both pass over the file once, with thousands of times
# the operations of a pass of `cgls`, which makes some 20 passes and keeps only blocks
# and vectors, 0.9 GB in all: here it is the one that fits. Within 3 GB, two contexts
# can use `normal` for n up to 8,000 and `tsqr` up to 4,500.
#
# ## Measured
#
# CGLS from a file, on one device and on two; the record has the peak of resident
# memory.

# %%
if __name__ == "__main__":
    runs = chapter.measure("least_squares_large")

# %% [markdown]
# ## Summary
#
# - Of a matrix in a file, one block per device has to be in memory at a time. What is
#   summed, and sent, does not grow with the rows.
# - A method that passes over the rows many times reads the file many times; one that
#   passes once needs n x n numbers. Which is cheaper depends on n, not on m.
# - Memory grows where a graph keeps what it will need again. Measure the peak, in a
#   fresh process.
# - A number can be checked by what it must be: sqrt((m - n) / 12).
#
# ## Exercises
#
# 1. **Check the second run.** Solve `datasets.uniform_file(100_000, 1_000)` (0.8 GB in
#    TMPDIR) with `method="normal"` and `resident_bytes=0`. *(You should find 90.90, as
#    the notes do up to their random numbers.)*
# 2. **The size of a block.** Time `cgls_in_blocks` with 10, 100, 1,000 and 2,500 rows.
#    *(You should find that tiny blocks are slow, because a block costs half a
#    millisecond whatever its size: 3.0 s, 0.33, 0.06 and 0.04 s here.)*
# 3. **Normal equations in blocks.** Change `products` to sum `block.T @ block` and
#    `block.T @ b`, and solve once. *(You should find the same x after one pass instead
#    of 11, with an all-reduce of 2,550 numbers instead of 11 of 51.)*
# 4. **Read twice rather than keep.** Give `dask_two_products` two calls of `compute()`,
#    one per product. *(You should find that it reads the file twice and needs no more
#    memory than `dask_one_product`.)*
# 5. **A page cache is not a disk.** Time the first pass over a new file and the second.
#    *(You should find them about equal: a file that was just written is still in
#    memory. Only a file larger than memory, as the `book` preset's may be, is read from
#    the disk.)*
