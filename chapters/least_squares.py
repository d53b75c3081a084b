# %% [markdown]
# # Case study: least squares
#
# A network's training is hard to check by eye. Here we apply data parallelism to a
# problem of which every digit can be checked: which x minimises ||A x - b||, if the
# rows of A are spread over several devices? We write four methods that reach the best
# x, and audit a published program that does not.
#
# ![Rows of A over devices](../docs/drawings/rows-over-devices.svg)
#
# Lecture notes [1] solve the problem on two simulated GPUs with an error of **28.81**.
# The best possible error was 27.35.
#
# Run this chapter as a notebook, or as `python chapters/least_squares.py --num-devices
# 1,2`.

# %%
import importlib.util
import logging
import math
import tempfile

import numpy

from d2lpar import allreduce, chapter, devices, mx, np, split_batch
from d2lpar.least_squares import LeastSquare, solve

logging.getLogger("d2lpar").setLevel("ERROR")  # it warns of conditions, as we do
two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")

# %% [markdown]
# ## The problem and its answer
#
# As in the notes, A and b are uniform in [0, 1), but A is only 1,000 x 50. Our
# reference is LAPACK, the library behind `numpy.linalg`.

# %%
rng = numpy.random.default_rng(0)
A, b = rng.random((1000, 50)), rng.random(1000)
best = numpy.linalg.lstsq(A, b, rcond=None)[0]
optimum = numpy.linalg.norm(A @ best - b)
print(f"LAPACK: ||A x - b|| = {optimum:.6f}")
packaged = solve(A, b, devices=two, method="normal")
print(f"d2lpar: ||A x - b|| = {packaged.residual_norm:.6f}")

# %% [markdown]
# ## Rows over devices
#
# Each device receives one half of the rows of A and of b. After that only short vectors
# travel: x has 50 numbers, however many rows A has. The sum of squares splits by rows,
# and so does its gradient:
#
# $$\|Ax-b\|^2=\sum_k\|A_kx-b_k\|^2,\qquad \nabla=2\sum_k A_k^\top(A_kx-b_k).$$

# %%
A_shards, b_shards = split_batch(A, b, two)
for A_k, b_k in zip(A_shards, b_shards):
    print(f"{A_k.ctx}: A is {A_k.shape}, b is {b_k.shape}")


def error(x) -> float:
    """||A x - b|| over all rows, on the host."""
    return float(numpy.linalg.norm(A @ numpy.asarray(x) - b))


# %% [markdown]
# ## Gradient descent
#
# In each step a device computes the gradient of its rows, without the factor 2. An
# all-reduce sums these gradients of 50 numbers. The *condition* of A is the ratio of
# its largest to its smallest singular value, and `largest` is the largest eigenvalue of
# A^T A. A step of size 1 / `largest` multiplies the slowest part of the error by
# `1 - 1 / condition^2`.
#
# *Predict before you run*: the condition of this A is about 16. How many steps does the
# gradient need to shrink to 1e-8 of its start?


# %%
def gradient(A_shards, b_shards, num_steps, lr, tol=0.0):
    """Each device's x, and the steps until the gradient is `tol` times the first."""
    least = 0.0
    xs = [np.zeros(A_k.shape[1], dtype="float64", ctx=A_k.ctx) for A_k in A_shards]
    shards = [(A_k.T, A_k, b_k) for A_k, b_k in zip(A_shards, b_shards)]
    for step in range(num_steps):
        gs = [
            np.dot(A_T, np.dot(A_k, x_k) - b_k)
            for (A_T, A_k, b_k), x_k in zip(shards, xs)
        ]
        allreduce(gs)
        if tol:
            size = numpy.linalg.norm(gs[0].asnumpy())
            least = tol * size if step == 0 else least
            if size <= least:
                return [x_k.asnumpy() for x_k in xs], step
        for x_k, g in zip(xs, gs):
            x_k -= lr * g
    return [x_k.asnumpy() for x_k in xs], num_steps


chapter.predict("steps of gradient descent", None)
largest = numpy.linalg.norm(A, 2) ** 2  # the largest eigenvalue of A^T A
condition = numpy.linalg.cond(A)
bound = math.log(1e8) / -math.log(1 - 1 / condition**2)
print(f"condition of A: {condition:.1f}; at most {bound:,.0f} steps by the bound")
(first, second), _ = gradient(A_shards, b_shards, 2000, 1 / largest)
(alone,), _ = gradient(*split_batch(A, b, two[:1]), 2000, 1 / largest)
print("replicas agree:", (first == second).all(), end="; ")
print(f"one device or two: x differs by {abs(alone - first).max():.0e}")
(same, _), steps = gradient(A_shards, b_shards, 10_000, 1 / largest, tol=1e-8)
print(f"a gradient of 1e-8 of its start: {error(same):.6f} after {steps} steps")
assert steps <= bound
chapter.answer("steps of gradient descent", steps)

# %% [markdown]
# The replicas agree bit for bit because they receive the same sum. One device and two
# differ by rounding only.
#
# ## Conjugate gradients
#
# CGLS, the method of conjugate gradients [2], costs about the same per step. It needs a
# number of steps that is proportional to the condition, whereas gradient descent needs
# its square.


# %%
def cgls(A_shards, b_shards, tol=1e-10):
    n = A_shards[0].shape[1]
    xs = [np.zeros(n, dtype="float64", ctx=A_k.ctx) for A_k in A_shards]
    ss = [np.dot(A_k.T, b_k) for A_k, b_k in zip(A_shards, b_shards)]
    allreduce(ss)  # the descent direction A^T (b - A x), here at x = 0
    ps = [s.copy() for s in ss]
    gamma = start = float((ss[0] ** 2).sum())
    steps = 0
    while gamma > tol**2 * start:
        steps += 1
        qs = [np.dot(A_k, p) for A_k, p in zip(A_shards, ps)]
        sums = [
            np.concatenate([np.dot(A_k.T, q), (q * q).sum().reshape(1)])
            for A_k, q in zip(A_shards, qs)
        ]
        allreduce(sums)
        alpha, before = gamma / float(sums[0][n]), gamma
        for x, s, p, total in zip(xs, ss, ps, sums):
            x += alpha * p
            s -= alpha * total[:n]
        gamma = float((ss[0] ** 2).sum())
        for s, p in zip(ss, ps):
            p[:] = s + gamma / before * p
    return xs[0].asnumpy(), steps


x, steps = cgls(A_shards, b_shards)
print(f"here: {error(x):.6f} after {steps} steps")
assert numpy.allclose(x, best, rtol=1e-7)

# %% [markdown]
# ## Normal equations
#
# At the minimum the gradient is zero. This yields the *normal equations* A^T A x = A^T
# b. Device k computes its *Gram matrix* A_k^T A_k, and the sum of these matrices is the
# Gram matrix G of all rows. We all-reduce n^2 + n numbers once, here in two calls. The
# Cholesky factorisation G = L L^T then turns the equations into two triangular systems.


# %%
def solve_lower(L, c, transpose=False):
    """x of L x = c for a lower triangular L, or of L^T x = c."""
    column = c.reshape(-1, 1).as_nd_ndarray()
    x = mx.nd.linalg.trsm(L.as_nd_ndarray(), column, transpose=transpose)
    return x.as_np_ndarray().reshape(-1)


def normal(A_shards, b_shards):
    Gs = [np.dot(A_k.T, A_k) for A_k in A_shards]
    cs = [np.dot(A_k.T, b_k) for A_k, b_k in zip(A_shards, b_shards)]
    allreduce(Gs)
    allreduce(cs)
    L = np.linalg.cholesky(Gs[0])
    return solve_lower(L, solve_lower(L, cs[0]), transpose=True).asnumpy()


x = normal(A_shards, b_shards)
print(f"here: {error(x):.6f}, d2lpar: {packaged.residual_norm:.6f}")
assert numpy.allclose(x, best, rtol=1e-9)
assert numpy.allclose(packaged.x, best, rtol=1e-9)

# %% [markdown]
# ## TSQR: reduce with a QR instead of a sum
#
# The reduction need not be a sum. Each device factorises [A_k b_k] = Q_k R_k, with
# orthonormal columns of Q_k, and keeps only the triangle R_k of n + 1 rows. The QR
# factorisation of two stacked triangles yields the triangle of all their rows, so
# triangles can be reduced pairwise, like sums. This is *tall and skinny QR*, TSQR [3]:
#
# ![Each device's rows become a triangle; the two triangles, stacked, become one by
# another QR](../docs/drawings/two-triangles.svg)
#
# The last number on the diagonal of R is the least ||A x - b||, up to its sign. A^T A
# is never formed.


# %%
def triangle(M):
    """R of M = Q R. MXNet has the factorisation of the transpose, M^T = L Q."""
    _, L = mx.nd.linalg.gelqf(M.T.as_nd_ndarray())
    return L.as_np_ndarray().T


def tsqr(A_shards, b_shards):
    shards = zip(A_shards, b_shards)
    Rs = [triangle(np.concatenate([A_k, b_k[:, None]], axis=1)) for A_k, b_k in shards]
    stacked = np.concatenate([R.copyto(Rs[0].ctx) for R in Rs])
    R = triangle(stacked)
    x = solve_lower(R[:-1, :-1].T, R[:-1, -1], transpose=True)
    return x.asnumpy(), abs(float(R[-1, -1]))


x, residual = tsqr(A_shards, b_shards)
print(f"here: {error(x):.6f}, on the diagonal: {residual:.6f}")
assert numpy.allclose(x, best, rtol=1e-9) and abs(residual - optimum) < 1e-9

# %% [markdown]
# ## What squaring costs
#
# The condition of the Gram matrix is the *square* of the condition of A. The normal
# equations therefore lose about `2 * log10(condition)` of the 16 digits of float64, and
# TSQR loses about `log10(condition)`. CGLS never forms A^T A, but its stopping rule
# looks at the gradient, in which an error along the smallest singular value counts with
# the square of this value. We make two columns of A almost equal, set b to A times a
# known x, and print by how much each method misses x. The package's `normal` corrects x
# once by its residual.
#
# *Predict before you run*: how many digits of x does the package's `normal` find at a
# condition of 2e6?

# %%
chapter.predict("digits by normal at 2e6", None)
x_true, off = rng.random(50), {}
for closeness in (1e-3, 1e-4, 1e-5, 1e-6):
    A_close = A.copy()
    A_close[:, 1] = A[:, 0] + closeness * A[:, 1]
    b_close = A_close @ x_true
    shards = split_batch(A_close, b_close, two)
    for name, x in {
        "TSQR": tsqr(*shards)[0],
        "normal equations": normal(*shards),
        "d2lpar normal": solve(A_close, b_close, devices=two, method="normal").x,
        "d2lpar cgls": solve(A_close, b_close, devices=two, method="cgls").x,
    }.items():
        off.setdefault(name, []).append(abs(x - x_true).max())
    off.setdefault("condition", []).append(numpy.linalg.cond(A_close))
print(f"{'condition':23}", *(f"{value:7.0e}" for value in off.pop("condition")))
for name, values in off.items():
    print(f"{name:23}", *(f"{value:7.0e}" for value in values))
digits = -math.log10(off["d2lpar normal"][2])
chapter.answer("digits by normal at 2e6", digits)
assert off["d2lpar normal"][2] < 1e-3 * off["normal equations"][2]

# %% [markdown]
# One correction gives back the digits that squaring cost, up to a condition of about
# 1e6. From 5e6 on the package warns, from 3e7 on it refuses, and names `tsqr`.
#
# ## Which one?
#
# The table is for m rows, n columns, N devices, T steps, `k = log10(condition)`, and a
# b that some x fits closely:
#
# | | arithmetic of a device | all-reduced | digits lost, about |
# |---|---|---|---|
# | gradient | T x 4 m n / N | n per step, T up to c condition^2 | 2 k |
# | CGLS | T x 4 m n / N | n + 1 per step, T up to c condition | 2 k |
# | normal equations | m n^2 / N + n^3 / 3 | n^2 + n, once | 2 k |
# | `normal`, refined | the same + 4 m n / N | n^2 + 2 n | k, up to k = 6 |
# | TSQR | 2 m n^2 / N, then at most 2 N n^3 | n^2 / 2 per device, once | k |
#
# (c grows with the accuracy that we ask for.) The package uses `normal` by default:
# most of its operations are one matrix product. Use CGLS where n^2 numbers are too many
# to send, and TSQR where the condition may exceed 1e6. Our
# [records](../figures/least_squares.md) have the times of these methods on cores and on
# H200s.
#
# ## An audit: descend alone, then average
#
# In the notes [1] each device draws 1,000 of its rows per epoch, with repetition, and
# takes 500 steps of gradient descent on them without communication. Then all devices
# continue from the average of their x, so they send one vector per epoch. We write this
# literally. With `independent=False` we reproduce a fault of the published code: the
# second device starts from the result of the first.


# %%
def averaging(num_epochs, independent=True, num_samples=1000, num_steps=500):
    draw = numpy.random.default_rng([0, 1])
    lr = 1e-3 / A.shape[1]
    x = np.array(draw.random(A.shape[1]), dtype="float64")
    for _ in range(num_epochs):
        rows = [draw.integers(len(b_k), size=num_samples) for b_k in b_shards]
        xs = []
        for A_k, b_k, index in zip(A_shards, b_shards, rows):
            index = np.array(index, dtype="int32", ctx=A_k.ctx)
            A_drawn, b_drawn = A_k.take(index, axis=0), b_k.take(index, axis=0)
            A_T = A_drawn.T  # MXNet copies: once here, not in each step
            start = x if independent or not xs else xs[-1]
            x_k = start.copyto(A_k.ctx)
            for _ in range(num_steps):
                x_k -= lr * 2 * np.dot(A_T, np.dot(A_drawn, x_k) - b_drawn)
            xs.append(x_k)
        x = sum(x_k.copyto(two[0]) for x_k in xs) / len(xs)
    return x.asnumpy()


print("epochs:               1           5          40")
after = {}
for name, independent in (("independent", True), ("one by one", False)):
    how = {"method": "averaging", "independent": independent, "num_epochs": 40}
    history = solve(A, b, devices=two, **how).history
    after[name] = [history[k - 1].residual_norm for k in (1, 5, 40)]
    print(f"{name:11}", *(f"{e:11.6f}" for e in after[name]))
    assert math.isclose(error(averaging(1, independent)), after[name][0], rel_tol=1e-8)
    _, five, forty = after[name]
    assert abs(five - forty) < (forty - optimum) / 10
print(f"LAPACK:      {optimum:.6f}")
together, in_turn = after["independent"], after["one by one"]
assert together[0] > in_turn[0] and optimum < together[1] < in_turn[1]

# %% [markdown]
# Both variants stop above LAPACK's residual, and more epochs change this little. A
# device approaches the solution of the rows that it has *drawn*, and the average of two
# solutions is not the solution of all rows. Averaging after every step *is* summing the
# gradients. Averaging rarely is local SGD, an extra of this course.
#
# ## Five faults of the notes' code
#
# The package contains the class of the notes with its faults mended. We call it as
# their script does, and then show the first fault in four lines:

# %%
lstsq = LeastSquare(A, b, epoches=5)
theta = lstsq.run()
print(f"error: {lstsq.check(theta):.6f}")
# check() has added the last entry, as in the notes; the devices' stand before it.
print(f"GPU1 error: {lstsq.error_list[-3]:.6f}, GPU2 error: {lstsq.error_list[-2]:.6f}")
x_hat = numpy.zeros(3)
x = x_hat
x -= 1
print("x_hat after x -= 1:", x_hat)

# %% [markdown]
# These are the five faults:
#
# 1. `x = self.x_hat` copies nothing, and `x -= ...` works in place. The second "GPU"
#    therefore begins where the first one ended.
# 2. Both halves draw row numbers below the length of the *first* half, so an odd last
#    row is never used.
# 3. A "GPU" is one turn of a NumPy loop, so the printed seconds are those of a CPU.
# 4. The script calls `check`, which appends the error of the average, *before* it
#    prints the last two entries as the errors of both GPUs. Therefore the second
#    printed error is that of the average, and the error of "GPU 1" belongs to the
#    second "GPU".
# 5. The "rms between x and theta" is a norm, which is not divided by the number of
#    elements.
#
# Was the second problem "100 times larger", as the notes say [1]? b is uniform in [0,
# 1), with a variance of 1/12, and each of the n columns explains one of the m
# dimensions of b. So we can compute the least ||A x - b|| to expect.


# %%
def expected(m, n):
    """About the least ||A x - b|| of uniform A and b.

    A has no column of ones to imitate b's mean of 1/2. The best substitute for it has
    an error of its own, which adds the last factor.
    """
    return math.sqrt((m - n) / 12 * (1 + 3 / (3 * n + 1)))


print(f"1,000 x 50: expected {expected(1000, 50):.3f}, LAPACK {optimum:.3f}")
for m, n, published in (
    (10_000, 1_000, "27.35"),
    (100_000, 10_000, "90.83"),
    (100_000, 1_000, "90.83"),
):
    print(f"{m:,} x {n:,}: expected {expected(m, n):.2f}, the notes print {published}")
chapter.score()

# %% [markdown]
# The printed error belongs to 1,000 columns. So the second problem was ten times as
# large as the first.
#
# ## Measured
#
# We run the methods on your machine. A single CPU context uses all cores, and two use
# one each, so these ratios are not the gain of a second core. Add `--threads 1` to see
# it, as in our records.

# %%
if __name__ == "__main__":
    chapter.measure("least_squares")

# %% [markdown]
# ## An A larger than memory
#
# Dask [4] is made for arrays that do not fit into memory. It cuts a file into *chunks*
# of rows and reads a chunk when it is needed. Here it sums the Gram matrix of [A b]
# over chunks, as our devices do over their rows. Beside it stands the package's x.

# %%
if importlib.util.find_spec("dask"):
    import dask.array as da

    with tempfile.TemporaryDirectory() as folder:
        numpy.save(f"{folder}/Ab.npy", numpy.column_stack([A, b]))
        on_disk = numpy.load(f"{folder}/Ab.npy", mmap_mode="r")
        Ab = da.from_array(on_disk, chunks=(100, -1))
        G = (Ab.T @ Ab).compute()
        del on_disk, Ab
    x = numpy.linalg.solve(G[:-1, :-1], G[:-1, -1])
    print(f"Dask, in chunks: {error(x):.9f}, d2lpar: {packaged.residual_norm:.9f}")
    assert numpy.allclose(x, packaged.x, rtol=1e-8)
else:
    print("skipped: Dask is not installed (pip install dask)")

# %% [markdown]
# ## Summary
#
# > **Takeaway.** The gradient of a sum over rows is a sum of gradients. If some x fits
# > b closely, a method keeps about `16 - p * log10(condition)` digits in float64: p = 2
# > for gradient descent, bare normal equations and CGLS; p = 1 for TSQR and, below a
# > condition of about 1e6, for normal equations that are corrected once.
#
# With summed gradients N devices compute what one computes, up to rounding. With
# averaged answers they do so only if they average after every step.
#
# ## Exercises
#
# 1. Leave out the all-reduce in `gradient`. *(The replicas no longer agree. Each
#    approaches the solution of its own half of the rows.)*
# 2. *On paper.* Which method for 10,000,000 x 20 with a condition of 10, which for
#    20,000 x 5,000 with a condition of 1e9, and which for 1,000,000 x 100,000?
#    *(`normal`: one pass, 420 numbers sent. TSQR: the squared condition would leave no
#    digit. CGLS: even the Gram matrix would have `8 * 1e10` bytes.)*
# 3. *On paper.* A has a condition of 100. How many steps of gradient descent are enough
#    to reduce the error by 1e-6, and how many of CGLS to reduce ||A (x - best)|| as
#    much? *(`6 ln(10) * 10^4 = 138,000`. As `(99 / 101)^T` is about `exp(-2 T / 100)`,
#    CGLS needs at most about `100 / 2 * ln(2e6) = 725`.)*
# 4. *Open.* Which of these methods would survive a device that sends a wrong sum?
#
# ## Sources
#
# - [1] Least-squares notes on GPU computing, class `LeastSquare` (in Korean),
#   `2022_05_03.ipynb` of <https://github.com/Daegeun02/GPGPU>. Their program, as
#   published, is `benchmarks/peers/least_squares_notes.py`.
# - [2] Hestenes and Stiefel, "Methods of Conjugate Gradients", 1952,
#   <https://doi.org/10.6028/jres.049.044>
# - [3] Demmel et al., "Communication-optimal Parallel and Sequential QR",
#   <https://arxiv.org/abs/0808.2664>
# - [4] Dask, <https://docs.dask.org>
