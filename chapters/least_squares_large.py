# %% [markdown]
# # Least squares larger than memory
#
# How do we solve a least-squares problem whose A does not fit into memory?
#
# ![Rows of A over devices](../docs/drawings/rows-over-devices.svg)
#
# **In one sentence.** A method that only multiplies by A can read it block by block, so
# memory holds a few blocks, and each pass reads the whole file.
#
# We leave A on disk and stream it through memory in blocks of rows. While the devices
# process one block, the next is being read. The all-reduced arrays are as small as in
# Chapter 8, and only b, one number per row, stays in memory. A published set of lecture
# notes [1] meant to solve a problem of **100,000 x 10,000** numbers, 8 GB in float64.
# At the end of this chapter we see what it takes.
#
# Run this chapter as a notebook, or as `python chapters/least_squares_large.py`.

# %%
import importlib.metadata
import importlib.util
import time

import numpy
from loky import ProcessPoolExecutor
from matplotlib.figure import Figure

from d2lpar import allreduce, chapter, datasets, devices, np
from d2lpar.least_squares import solve
from d2lpar.machine.host import process_status
from d2lpar.parallel import shares
from d2lpar.records.kinds import PointRecord

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")

# %% [markdown]
# ## A problem in a file
#
# A and b are uniform in [0, 1), as in the notes. The `book` preset has the 100,000 x
# 10,000 numbers of the notes and needs 8 GB in TMPDIR. The cells use a smaller A:

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
# Device k owns consecutive rows and reads `block_rows` of them at a time. The products
# with A and with its transpose both need only one block in memory.
#
# A `numpy.memmap` would spoil our measurement: the pages that it has touched stay in
# the process's resident memory until the operating system reclaims them. We therefore
# use a plain read.


# %%
def rows_of(A, start, stop):
    """Rows start:stop of the file behind a memmap, as an array of their own."""
    with open(A.filename, "rb") as f:
        f.seek(A.offset + start * A.strides[0])
        return numpy.fromfile(f, count=(stop - start) * A.shape[1]).reshape(
            stop - start, -1
        )


def blocks(block_rows):
    """Device number and row range of each block; the devices take turns."""
    parts = shares(m, len(two))
    for first in range(0, -(-m // len(two)), block_rows):
        for k, part in enumerate(parts):
            start = min(part.start + first, part.stop)
            stop = min(start + block_rows, part.stop)
            if start < stop:
                yield k, start, stop


def products(p, block_rows, b=None):
    """A^T A p and ||A p||^2; with b they are A^T (b - A p) and ||b - A p||^2."""
    ps = [np.array(p, dtype="float64", ctx=device) for device in two]
    sums = [np.zeros(n + 1, dtype="float64", ctx=device) for device in two]
    for k, start, stop in blocks(block_rows):
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
# CGLS is the loop of Chapter 8. It keeps three vectors of n numbers, and only
# `products` reads the rows.
#
# *Predict before you run*: how many times is the file read?


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
# CGLS reads the file once per step, and once before the first step. As the output
# shows, the size of the blocks changes neither the number of passes nor the result.
# CGLS needs fewer steps than in Chapter 8, because this A has 100 rows per column
# instead of 20. With more rows per column the singular values of random numbers, except
# for the largest, lie closer together, and fewer steps suffice.
#
# The package does the same. In addition, a thread reads the next blocks while the
# devices work (`d2lpar/least_squares/rows.py`). With `resident_bytes=0` the devices
# keep no block between two passes, as is necessary when A does not fit into memory.

# %%
limits = {"devices": two, "resident_bytes": 0, "block_bytes": 8 * n * 1_000}
for method in ("cgls", "normal"):
    in_blocks = solve(A, b, method=method, **limits)
    print(f"{method}, in blocks: {in_blocks.residual_norm:.9f}")
    assert numpy.allclose(in_blocks.x, x, rtol=1e-8)

# %% [markdown]
# ## Memory against rows
#
# How much memory does this take? Let us compare with Dask [2], a library made for the
# purpose. Dask splits an array into chunks, builds a graph of tasks on them, and runs
# the graph on all cores. We solve the same problem in six ways:
#
# - `numpy_lstsq` reads all of A;
# - `d2lpar_cgls` and `d2lpar_normal` read blocks, as above;
# - `dask_two_products` computes A^T A and A^T b in one call, and solves the normal
#   equations;
# - `dask_kept` does the same after `A.persist()`, which keeps all chunks in memory;
# - `dask_one_product` puts b beside A first and computes [A b]^T [A b].
#
# Blocks and chunks have 2,500 rows, 2 MB. Each solve runs in a new process, in which a
# small solve has loaded the libraries. We report by how much the peak of resident
# memory then rises.
#
# *Predict before you run*: how many of the six need more memory for more rows?

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


def dask_kept(A, b):
    dask, _, A, b = dask_arrays(A, b)
    A = A.persist()
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
    ways += [dask_two_products, dask_kept, dask_one_product]
    print("Dask", importlib.metadata.version("dask"))
else:
    print("skipped: Dask is not installed (pip install dask)")
few = datasets.uniform_file(2 * STEP, COLUMNS)
row_counts = [40_000, 80_000, 160_000]
memory = {way.__name__: [] for way in ways}
times = {way.__name__: [] for way in ways}
for num_rows in row_counts:
    large = datasets.uniform_file(num_rows, COLUMNS)
    print(f"{num_rows:,} x {COLUMNS}, {large.A.nbytes / 2**20:.0f} MiB:")
    for way in ways:
        with ProcessPoolExecutor(1) as fresh_process:
            problems = [(p.A.filename, p.b) for p in (few, large)]
            task = fresh_process.submit(measure, way, *problems)
            seconds, mib, error = task.result()
        memory[way.__name__].append(mib)
        times[way.__name__].append(seconds)
        print(f"  {way.__name__:18}{seconds:6.2f} s{mib:6.0f} MiB more  {error:.6f}")
del few, large  # and their files, which a kernel may leave behind
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
if "dask_one_product" in times:
    ratios = [a / b for a, b in zip(times["d2lpar_normal"], times["dask_one_product"])]
    print("d2lpar_normal's time over dask_one_product's:", end=" ")
    print(*(f"{ratio:.2f}" for ratio in ratios))
    faster = "d2lpar_normal" if max(ratios) < 1 else "dask_one_product"
    agree = max(ratios) < 1 or min(ratios) > 1
    print(f"{faster} is faster at all sizes" if agree else "neither is faster at all")

# %% [markdown]
# NumPy's memory grows with the rows, because it holds A and LAPACK's copy of it:
# compare it with twice the size of A. Our two ways read, use and drop each block, so
# their memory should stay about the same.
#
# Now look at Dask. Both products, A^T A and A^T b, need every chunk. A scheduler that
# runs both tasks of a chunk one after the other can then drop the chunk. A scheduler
# that first runs all tasks of one product must keep every chunk for the other product.
# The memory then grows with the rows, as in `dask_kept`. The output shows what this
# version of Dask does in `dask_two_products`. `dask_one_product` removes the cause: it
# uses each chunk for one product only.
#
# Compare times only between `d2lpar_normal` and Dask's ways, which read the file once
# and compute one Gram matrix. The last line compares single solves, so we call a way
# faster only if it is faster at all three sizes.
#
# ## Which method?
#
# The memory of blocks does not grow with the rows. However, some methods need memory
# that grows with n^2. Let us express the peak of each method in n x n matrices, for n =
# 1,000 and blocks of a quarter of such a matrix.


# %%
def matrices(method, *problems):
    """The peak of memory beyond the libraries', in matrices of n x n."""
    few, many = problems
    limits = {"devices": "cpu:2", "resident_bytes": 0, "block_bytes": 2_000_000}
    solve(*few, method=method, **limits)
    before = process_status("VmRSS")
    x = solve(*many, method=method, **limits).x
    return (process_status("VmHWM") - before) / (8 * len(x) ** 2)


problems = [datasets.uniform_file(*shape) for shape in ((500, 50), (4_000, 1_000))]
for method in ("cgls", "normal", "tsqr"):
    with ProcessPoolExecutor(1) as fresh_process:
        files = [(p.A.filename, p.b) for p in problems]
        found = fresh_process.submit(matrices, method, *files).result()
    print(f"{method:6} on two contexts: memory of {found:4.1f} matrices of n x n")
del problems

# %% [markdown]
# Two blocks on each device account for one such matrix. CGLS keeps no n x n matrix, so
# the rest of its memory consists of copies of blocks and of buffers of the libraries.
# The other methods need these as well. `normal` adds a sum on each device, products
# that wait to be added, and the Cholesky factor. `tsqr` factorises a block together
# with its triangle, and adds LAPACK's copies.
#
# For n = 10,000 an n x n matrix takes `8 * 10_000**2 / 1e9 = 0.8 GB`. The difference
# between a method and `cgls`, times 0.8 GB, estimates what the n x n matrices of the
# method need there. A difference of 5, for example, means 4 GB. Smaller blocks do not
# reduce these matrices, but they reduce the memory of CGLS.
#
# The time differs, too. `normal` and `tsqr` read the file once, and CGLS once per step.
# However, they need at least `n / 4 = 2,500` times the arithmetic of a CGLS pass. CGLS
# is therefore the method for many columns and little memory, and `normal` for few
# columns and a slow disk.
#
# ## Measured
#
# We begin with our record of the size that the notes meant to solve: CGLS on two
# contexts, three times.

# %%
run = chapter.record("least_squares_large/book-cgls-cpu2.jsonl")
points = run.lines_of(PointRecord)
last = max(point.iteration for point in points)
seconds = numpy.median([point.seconds for point in points if point.iteration == last])
peak = max(point.peak_resident_mb for point in points)
print("100,000 x 10,000, 8,000 MB")
print(
    f"||A x - b|| = {points[-1].residual_norm:.2f} after {last} steps, {seconds:.0f} s"
)
print(f"memory of the process: at most {peak:,.0f} MB")

# %% [markdown]
# The whole process, libraries included, never held as much as one sixth of A. The
# residual agrees with the formula of Chapter 8, which expects 86.61 for 10,000 columns;
# other random numbers vary it by about 0.14. The notes print 90.83 [1], which belongs
# to 1,000 columns.
#
# Now we run CGLS from a smaller file on your machine, on one device and on two. The
# record contains the peak of resident memory, too.
#
# *Predict before you run*: by which factor does the second device change the time?
# Write 0.5 if you expect half of the time.

# %%
chapter.predict("two devices' seconds / one's", None)
if __name__ == "__main__":
    runs = chapter.measure("least_squares_large")
    found = {}
    for run in runs:
        points = run.lines_of(PointRecord)
        last = max(point.iteration for point in points)
        seconds = [p.seconds for p in points if p.iteration == last]
        found[run.header.num_devices] = numpy.median(seconds)
    if len(found) > 1:
        ratio = found[max(found)] / found[min(found)]
        chapter.answer("two devices' seconds / one's", ratio)
chapter.score()

# %% [markdown]
# A step uses each block for two products of little arithmetic. We therefore expect disk
# and memory bandwidth to set the time. Two contexts share both, so the ratio should be
# near 1. A second GPU would add memory bandwidth, but both would read from the same
# disk.
#
# ## Summary
#
# > **Takeaway.** CGLS needs at least `2 * devices * block` bytes (one block used, one
# > being read) and a few vectors of n and m numbers; the normal equations add several n
# > x n matrices, which the cell above counts. Neither holds A.
#
# The sums and the traffic do not grow with the rows. A method with many passes reads
# the file many times, and a method with one pass needs n x n numbers. Memory can also
# grow with the rows where a scheduler keeps a chunk for a later task. Measure the peak,
# in a new process.
#
# ## Exercises
#
# 1. *On paper.* The `book` preset's A has 100,000 x 10,000 numbers in float64. How long
#    does one pass take from a disk of `2 GB/s`, and how long do 20? *(`8 / 2 = 4 s`,
#    and `20 * 4 = 80 s`.)*
# 2. *On paper.* Two devices, blocks of 2,500 rows of 10,000 numbers, one being read
#    while one is used. How much memory is that? *(`2 * 2 * 2500 * 10_000 * 8 = 800e6`
#    bytes.)*
# 3. Check the notes' second run: solve `datasets.uniform_file(100_000, 1_000)` (a file
#    of `8 * 100_000 * 1_000` bytes in TMPDIR) with `method="normal"` and
#    `resident_bytes=0`. *(The notes print 90.83, and the formula of Chapter 8 expects
#    90.87. With other random numbers the result varies by about 0.13.)*
# 4. Normal equations in blocks: change `products` to sum `block.T @ block` and
#    `block.T @ b`, and solve once. *(The x is the same after a single pass. One
#    all-reduce of `n^2 + n` numbers replaces one of `n + 1` per pass.)*
# 5. Read twice rather than keep: give `dask_two_products` two calls of `compute()`, one
#    per product. *(The file is read twice. Each call uses a chunk for one product, so
#    the memory need not grow.)*
# 6. A page cache is not a disk. Time a pass over the file. Then ask the system to
#    forget the file, and time a pass again:
#    `os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)` for the open file `f`,
#    after `os.fsync(f.fileno())`. *(A file that was just written is still in memory, so
#    the first pass measures memory. The second reads the disk, unless the folder itself
#    is in memory, as `/dev/shm` is.)*
#
# ## Sources
#
# - [1] Least-squares notes on GPU computing, the run with more data (in Korean),
#   `2022_05_03.ipynb` of <https://github.com/Daegeun02/GPGPU>
# - [2] Dask, <https://docs.dask.org>
