# %% [markdown]
# # Least squares larger than memory
#
# Source: the least-squares notes, the run with more data,
# <https://github.com/Daegeun02/GPGPU> (`2022_05_03.ipynb`, in Korean)
#
# When A does not fit into memory, it stays in a file and is read in blocks. Each device
# works through its rows while the next blocks are being read, and the all-reduced
# arrays are as short as before. So the memory needed does not depend on the number of
# rows.
#
#     python chapters/least_squares_large.py --devices auto --num-devices 1,2
#     d2lpar run least_squares_large --preset book     (8 GB in TMPDIR, some minutes)
#
# **What you will learn.**
#
# - conjugate gradients (CGLS) over blocks of a file, on several devices;
# - how to measure the memory of a computation, and what makes it grow;
# - why the memory of the same computation grows in one formulation and not in another,
#   with Dask as the example.
#
# ![Rows of A over devices](../docs/drawings/rows-over-devices.svg)

# %%
import importlib.util
import time

import numpy
from loky import ProcessPoolExecutor
from matplotlib.figure import Figure

from d2lpar import allreduce, chapter, datasets, devices, np
from d2lpar.least_squares import solve
from d2lpar.machine.host import process_status
from d2lpar.parallel import shares

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")

# %% [markdown]
# ## A problem in a file
#
# A and b are uniform in [0, 1), as in the notes. The `book` preset has 100,000 x 10,000
# numbers, 8 GB. The cells below are smaller:

# %%
problem = datasets.uniform_file(rows=5_000, columns=50)
A, b = problem.A, problem.b
m, n = A.shape
print(f"{type(A).__name__} {A.shape}, {A.nbytes / 1e6:.0f} MB in a file")
at_once = solve(numpy.array(A), b, devices=two, method="cgls")
print(f"at once: {at_once.residual_norm:.9f}")

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


chapter.predict("times that the file is read", None)  # write your number for None
for block_rows in (100, 1_000):
    x, passes = cgls_in_blocks(block_rows)
    error = numpy.linalg.norm(A @ x - b)
    print(f"blocks of {block_rows:,} rows: {error:.9f} after {passes} passes")
    assert numpy.allclose(x, at_once.x, rtol=1e-8)
chapter.answer("times that the file is read", passes)

# %% [markdown]
# **What you see.** CGLS reads the file once per step, and once before the first. The
# size of the blocks changes neither the number of passes nor the result.
#
# The package does the same, and a thread reads the next blocks while the devices work
# on the present ones (`d2lpar/least_squares/rows.py`). `resident_bytes=0` keeps no
# block on the devices, as is necessary when A does not fit into memory.

# %%
limits = {"devices": two, "resident_bytes": 0, "block_bytes": 8 * n * 1_000}
for method in ("cgls", "normal"):
    in_blocks = solve(A, b, method=method, **limits)
    print(f"{method}, in blocks: {in_blocks.residual_norm:.9f}")
    assert numpy.allclose(in_blocks.x, x, rtol=1e-8)

# %% [markdown]
# ## Memory against rows
#
# [Dask](https://docs.dask.org) splits an array into chunks, too, builds a graph of
# tasks on them, and runs the graph on all cores. Five ways to solve the same problem:
#
# - `numpy_lstsq` reads all of A;
# - `d2lpar_cgls` and `d2lpar_normal` read blocks, as above;
# - `dask_two_products` computes A^T A and A^T b in one call, and solves the normal
#   equations;
# - `dask_one_product` puts b beside A first and computes [A b]^T [A b].
#
# Blocks and chunks have 2,500 rows, 2 MB. Each solve runs in a fresh process, and its
# memory is the peak of the process's resident memory less what it had before, after a
# small solve that loads the libraries.
#
# *Predict before you run*: how many of the five need more memory for more rows?

# %%
chapter.predict("ways whose memory grows", None)
STEP, COLUMNS = 2_500, 100


def numpy_lstsq(A, b):
    return numpy.linalg.lstsq(rows_of(A, 0, len(b)), b, rcond=None)[0]


def d2lpar_cgls(A, b, method="cgls"):
    limits = {"resident_bytes": 0, "block_bytes": 8 * STEP * COLUMNS}
    return solve(A.filename, b, devices="cpu:2", method=method, **limits).x


def d2lpar_normal(A, b):
    return d2lpar_cgls(A, b, "normal")


def dask_arrays(A, b):
    """A and b as Dask's arrays of chunks; a chunk of A is read when it is needed."""
    import dask
    import dask.array as da

    starts = range(0, len(A), STEP)
    chunks = [dask.delayed(rows_of)(A, start, start + STEP) for start in starts]
    A = da.concatenate([da.from_delayed(c, (STEP, COLUMNS), float) for c in chunks])
    return dask, da, A, da.from_array(b, chunks=STEP)


def dask_two_products(A, b):
    dask, _, A, b = dask_arrays(A, b)
    return numpy.linalg.solve(*dask.compute(A.T @ A, A.T @ b))


def dask_one_product(A, b):
    _, da, A, b = dask_arrays(A, b)
    Ab = da.concatenate([A, b[:, None]], axis=1).rechunk({1: -1})
    G = (Ab.T @ Ab).compute()
    return numpy.linalg.solve(G[:-1, :-1], G[:-1, -1])


def measure(way, *problems):
    """Seconds, MiB and ||A x - b|| of a way to solve; in a process of its own.

    `problems` are the paths of A, and b, of a small problem and of a large one.
    """
    few, many = ((numpy.load(path, mmap_mode="r"), b) for path, b in problems)
    way(*few)  # loads libraries, starts threads
    before, begin = process_status("VmRSS"), time.perf_counter()
    x = way(*many)
    seconds = time.perf_counter() - begin
    mib = (process_status("VmHWM") - before) / 2**20
    return seconds, mib, numpy.linalg.norm(many[0] @ x - many[1])


ways = [numpy_lstsq, d2lpar_cgls, d2lpar_normal]
if importlib.util.find_spec("dask"):
    ways += [dask_two_products, dask_one_product]
else:
    print("skipped: Dask is not installed (pip install dask)")
few = datasets.uniform_file(2 * STEP, COLUMNS)
row_counts = [40_000, 80_000, 160_000]
memory = {way.__name__: [] for way in ways}
for num_rows in row_counts:
    large = datasets.uniform_file(num_rows, COLUMNS)
    print(f"{num_rows:,} x {COLUMNS}, {large.A.nbytes / 2**20:.0f} MiB:")
    for way in ways:
        with ProcessPoolExecutor(1) as fresh_process:
            problems = [(p.A.filename, p.b) for p in (few, large)]
            task = fresh_process.submit(measure, way, *problems)
            seconds, mib, error = task.result()
        memory[way.__name__].append(mib)
        print(f"  {way.__name__:18}{seconds:6.2f} s{mib:6.0f} MiB more  {error:.6f}")
figure = Figure(figsize=(6, 3.2), layout="constrained")
axes = figure.subplots()
for name, mib in memory.items():
    axes.plot(row_counts, mib, "o-", label=name)
axes.set(xlabel="rows", ylabel="MiB more")
axes.legend()
chapter.show(figure, "memory-of-rows")
growing = [name for name, mib in memory.items() if mib[-1] - mib[0] > 50]
print("more than 50 MiB more for four times the rows:", ", ".join(growing))
chapter.answer("ways whose memory grows", len(growing))

# %% [markdown]
# **What you see.** The memory of NumPy grows with the rows, because it holds A and
# LAPACK's copy of it. So does that of `dask_two_products`, although it reads in chunks:
# it multiplies chunk by chunk for A^T A, and keeps every chunk in memory for A^T b. The
# memory of the others stays about the same. `dask_one_product` frees a chunk after its
# one product, and our blocks are read, used and dropped.
#
# So what decides whether memory grows is the task graph, not the library. The scheduler
# sees which tasks need a chunk; it cannot know that reading the chunk twice would be
# better than keeping it. Small changes matter: with b as a column, `b[:, None]`, the
# same two products free their chunks, because the tasks then run in another order.
#
# Compare the times, too. CGLS reads the file once per step. `normal` and
# `dask_one_product` read it once in all and do the same arithmetic, so they are what to
# compare with each other.
#
# ## Which method?
#
# A matrix of (n, n) takes `8 * 10_000**2 / 1e9 = 0.8 GB` for n = 10,000. With rows in
# blocks `normal` needs about 2.5 such matrices on one context and 5 on two, for the
# sums, the Cholesky factor and their copies, and `tsqr` more than twice as many. Both
# read the file once, with thousands of times the operations of one pass of `cgls`,
# which makes some 20 passes and keeps only blocks and vectors. For n = 10,000 and a few
# GB of memory `cgls` is the method that fits.
#
# ## Measured
#
# CGLS from a file, on one device and on two; the record has the peak of resident
# memory.
#
# *Predict before you run*: does the second device halve the time?

# %%
chapter.score()
if __name__ == "__main__":
    runs = chapter.measure("least_squares_large")

# %% [markdown]
# **What you see.** A step is two products with a block of numbers that are used once,
# so memory and file decide its time, and these two contexts share them. A second
# context can lose. A second GPU brings memory of its own, and the file remains.
#
# ## Summary
#
# > **Takeaway.** Resident = devices x block + n-vectors for CGLS, + some n x n for
# > normal equations; never A. Above, four times the rows cost NumPy four times the
# > memory and our blocks nothing.
#
# - Of a matrix in a file, one block per device has to be in memory at a time. What is
#   summed, and sent, does not grow with the rows.
# - A method that passes over the rows many times reads the file many times; one that
#   passes once needs n x n numbers. Which is cheaper depends on n, not on m.
# - Memory grows where a graph keeps a chunk that it will need again. Measure the peak,
#   in a fresh process.
#
# ## Exercises
#
# 1. *On paper.* The `book` preset's A has 100,000 x 10,000 numbers in float64. How long
#    does one pass take from a disk of `2 GB/s`, and how long do 20? *(`8 / 2 = 4 s`,
#    and `20 * 4 = 80 s`.)*
# 2. *On paper.* Two devices, blocks of 2,500 rows of 10,000 numbers, one being read
#    while one is used. How much memory is that? *(`2 * 2 * 2500 * 10_000 * 8 = 800e6`
#    bytes.)*
# 3. **Check the notes' second run.** Solve `datasets.uniform_file(100_000, 1_000)` (a
#    file of `8 * 100_000 * 1_000` bytes in TMPDIR) with `method="normal"` and
#    `resident_bytes=0`. *(90.90, as the notes have it up to their random numbers;
#    expected are 90.87, by the formula of the chapter before.)*
# 4. **Normal equations in blocks.** Change `products` to sum `block.T @ block` and
#    `block.T @ b`, and solve once. *(The same x after a single pass, with one
#    all-reduce of `n^2 + n` numbers in place of one of `n + 1` per pass.)*
# 5. **Read twice rather than keep.** Give `dask_two_products` two calls of `compute()`,
#    one per product. *(The file is read twice, and the memory no longer grows.)*
# 6. **A page cache is not a disk.** Time the first pass over a new file and the second.
#    *(They take about equally long: a file that was just written is still in memory.
#    Only a file larger than memory, as the `book` preset's may be, is read from the
#    disk.)*
