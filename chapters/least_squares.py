# %% [markdown]
# # Data-parallel least squares
#
# Which x minimises ||A x - b||, if the rows of A are spread over several devices?
#
# ![Rows of A over devices](../docs/drawings/rows-over-devices.svg)
#
# **In one sentence.** Each device keeps its rows of A, the devices exchange sums of n
# or n^2 numbers for n columns, and the method decides how many digits of x are right.
#
# Every digit of this small problem can be checked. It has all the parts of a network's
# training: a batch that is split, gradients that are summed, and replicas that must
# agree. A published set of lecture notes [1] solves it on two simulated GPUs with an
# error of **28.81**, where the best possible error was 27.35. We write four methods
# that converge to the best x and differ in arithmetic, communication and accuracy. Then
# we use them to audit the notes.
#
# Run this chapter as a notebook, or as `python chapters/least_squares.py --num-devices
# 1,2`.

# %%
import cProfile
import importlib.util
import logging
import math
import pstats
import sys
import tempfile
from textwrap import fill

import numpy
from matplotlib.figure import Figure

from d2lpar import allreduce, chapter, datasets, devices, mx, np, split_batch
from d2lpar.least_squares import LeastSquare, solve
from d2lpar.least_squares.result import seconds_of
from d2lpar.records.kinds import ArmSample, PointRecord
from d2lpar.records.rule import phrase

logging.basicConfig(stream=sys.stdout, format="%(message)s", force=True)  # warnings
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
# all-reduce sums these gradients of 50 numbers.
#
# How many steps do we need? The *condition* of A is the ratio of its largest to its
# smallest singular value, and `largest` is the largest eigenvalue of A^T A. A step of
# size 1 / `largest` multiplies the error *along* a singular value s (along its right
# singular vector) by `1 - s^2 / largest`. The slowest part is multiplied by
# `1 - 1 / condition^2`, which bounds the gradient, too.
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
for num_steps in (100, 2000):
    (first, second), _ = gradient(A_shards, b_shards, num_steps, 1 / largest)
    print(f"{num_steps} steps: {error(first):.6f}, replicas agree:", end=" ")
    print((first == second).all())
    assert (first == second).all()
(alone,), _ = gradient(*split_batch(A, b, two[:1]), 2000, 1 / largest)
print(f"one device or two: x differs by {abs(alone - first).max():.0e}")
(same, _), steps = gradient(A_shards, b_shards, 10_000, 1 / largest, tol=1e-8)
print(f"a gradient of 1e-8 of its start: {error(same):.6f} after {steps} steps")
assert abs(error(first) - error(same)) < 1e-6
assert steps <= bound
chapter.answer("steps of gradient descent", steps)

# %% [markdown]
# The replicas agree bit for bit because they receive the same sum. One device and two
# differ by rounding only. We have computed `largest` on the host. Devices would
# estimate it by *power iteration*, the repeated multiplication of a vector by A^T A.
# The estimate may be too small, so one takes a smaller step, such as `0.95 / estimate`.
#
# ## Conjugate gradients
#
# CGLS, the method of conjugate gradients of Hestenes and Stiefel [2], costs the same
# per step: one product with A and one with its transpose. It computes the length alpha
# and the direction p of a step from the gradients so far. Device k sends A_k^T A_k p
# and ||A_k p||^2 together, in one all-reduce of n + 1 numbers.
#
# T steps multiply the distance ||A (x - best)|| by at most
# `2 * ((condition - 1) / (condition + 1))^T`. The bound of the steps is therefore a
# multiple of the condition. For gradient descent it is a multiple of the square.
#
# *Predict before you run*: how many steps does CGLS need for the gradient to shrink to
# 1e-10?


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


chapter.predict("steps of CGLS", None)
x, steps = cgls(A_shards, b_shards)
print(f"here: {error(x):.6f} after {steps} steps")
assert numpy.allclose(x, best, rtol=1e-7)
first, second, *_, last = numpy.linalg.svd(A, compute_uv=False)
print(f"singular values of A: {first:.1f}, then {second:.1f} to {last:.1f}")
for ratio in (first / last, second / last):
    bound = math.ceil(math.log(2e10) / math.log((ratio + 1) / (ratio - 1)))
    print(f"condition {ratio:.1f}: at most {bound} steps by the bound")
chapter.answer("steps of CGLS", steps)

# %% [markdown]
# How could one have known that the first bound is far too large? All numbers of A are
# positive, so one singular value is much larger than the rest. CGLS removes the error
# along such an outlier in one step. The other singular values determine the remaining
# steps, and the last line is their bound. In gradient descent the outlier is expensive,
# because it sets the step size.
#
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
# The condition of the Gram matrix is the *square* of the condition of A. The condition
# of a matrix multiplies the rounding errors made in it, so the normal equations lose
# about `2 * log10(condition)` of the 16 digits of float64. A *backward stable* method
# such as TSQR solves exactly a problem that differs from ours by rounding only. It
# loses about `log10(condition)` digits.
#
# CGLS never forms A^T A, and yet the square returns in two places. First, an error
# along the smallest singular value enters the gradient with the square of this value. A
# gradient of 1e-10 of its start proves nothing about x unless 1e-10 is well below
# `1 / condition^2`. Second, our loop updates the gradient by A^T A p, whose rounding
# errors are proportional to the largest eigenvalue of A^T A.
#
# We can remove the second cause. If we keep the residual r = b - A x and compute the
# gradient A^T r from it, the rounding errors shrink with r. The price is a second
# all-reduce per step, because r needs the all-reduced alpha. The following loop on the
# host does either:


# %%
def cgls_on_host(A, b, num_steps, from_residual):
    x, r = numpy.zeros(A.shape[1]), b.copy()
    s = p = A.T @ r
    for _ in range(num_steps):
        q = A @ p
        gamma, alpha = s @ s, s @ s / (q @ q)
        x, r = x + alpha * p, r - alpha * q
        s = A.T @ r if from_residual else s - alpha * (A.T @ q)
        p = s + (s @ s) / gamma * p
    return x


# %% [markdown]
# We make two columns of A almost equal, set b to A times a known x, and print by how
# much each method misses x. Rows named "d2lpar" are the package's methods.
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
        "CGLS to 1e-10": cgls(*shards, tol=1e-10)[0],
        "CGLS, 60 steps": cgls_on_host(A_close, b_close, 60, False),
        "CGLS from the residual": cgls_on_host(A_close, b_close, 60, True),
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
assert off["CGLS from the residual"][2] < 1e-3 * off["CGLS, 60 steps"][2]

# %% [markdown]
# Above a condition of 100 the package's `normal` takes one step of *iterative
# refinement*: it computes the residual from A, solves the same triangular systems for a
# correction, and adds it. The correction has a relative error of about
# `condition^2 * 1e-16`. One step restores the digits if this error is far below 1. At
# 2e7 some digits stay lost, and the package warns. From about 3e7 on `normal` refuses,
# and names `tsqr`. The package's `cgls` computes the gradient from the residual, by two
# all-reduces per step, and warns of a condition above 1e5.
#
# (If no x fits b, the solution itself is so sensitive that every method loses up to
# twice the digits of the condition.)
#
# Gradient descent computes the gradient from the residual, and still loses twice the
# digits. Along the smallest singular value s, a step of size 1 changes x by `s^2` times
# its error. Once this change is below the rounding of x, x stays where it is. An
# equation in one unknown shows it:


# %%
def error_when_steps_stop(s):
    """Of x in s x = s, by steps of size 1."""
    x, before = 0.0, None
    while x != before:
        x, before = x + s * (s - s * x), x
    return abs(x - 1)


for condition in (10, 30, 100):
    missed = error_when_steps_stop(1 / condition)
    print(f"condition {condition:3}: off by {missed:.0e}", end=", ")
    print(f"{missed / condition**2:.0e} times its square")
    assert 0.1 < missed / condition**2 / numpy.finfo(float).eps < 1

# %% [markdown]
# ## Which one?
#
# The table is for m rows, n columns, N devices, T steps, `k = log10(condition)`, and a
# b that some x fits closely:
#
# | | arithmetic of a device | all-reduced | digits lost, about |
# |---|---|---|---|
# | gradient | T x 4 m n / N | n per step, T up to c condition^2 | 2 k |
# | CGLS | T x 4 m n / N | n + 1 per step, T up to c condition | 2 k |
# | CGLS from the residual | T x 4 m n / N | n + 1 per step, in two sums | k |
# | normal equations | m n^2 / N + n^3 / 3 | n^2 + n, once | 2 k |
# | `normal`, refined | the same + 4 m n / N | n^2 + 2 n | k, up to k = 6 |
# | TSQR | 2 m n^2 / N, then at most 2 N n^3 | n^2 / 2 per device, once | k |
#
# The factor c grows with the logarithm of the accuracy that we ask for. The package
# uses `normal` by default: m n^2 / N of its operations are a matrix product, for which
# the libraries of CPUs and GPUs are optimised. Use CGLS where n^2 numbers are too many
# to send or to hold, and TSQR where the condition may exceed 1e6. Choose the method
# before the number of devices.
#
# Here are recorded times for 10,000 x 1,000 on one and two CPU contexts with a core
# each, and on one and two H200s, with what the rule of Chapter 4 says of them.

# %%
records = {"cpu": "least_squares/book-1thread", "gpu": "h200/least_squares/book"}
for kind, name in records.items():
    for method in ("normal", "cgls", "tsqr"):
        runs = (chapter.record(f"{name}-{method}-{kind}{n}.jsonl") for n in (1, 2))
        one, both = map(seconds_of, runs)
        print(fill(f"{kind}, {method}: {phrase('on 2', both, 'on 1', one)}", 88))

# %% [markdown]
# `numpy.linalg.lstsq` uses a singular value decomposition and thus more arithmetic: for
# other libraries see [equal methods](../figures/least_squares.md#the-same-method).
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
# Neither variant reaches LAPACK's residual. From five to 40 epochs the residual changes
# by less than a tenth of the distance.
#
# ## Why the average misses
#
# There are two reasons. First, a device approaches the solution of the rows that it has
# *drawn*. Second, even with all of its rows it approaches the solution of *its* rows,
# and the average of two solutions is not the solution of all rows. Without drawing, the
# local steps of device k multiply its distance from its own solution by a fixed matrix.
# Linear algebra therefore tells where the averages settle.


# %%
def settles(num_steps, lr=1e-3 / A.shape[1]):
    """Where averages after every `num_steps` local steps settle, if none are drawn."""
    pull, target = 0, 0
    for half_A, half_b in ((A[:500], b[:500]), (A[500:], b[500:])):
        gram = 2 * half_A.T @ half_A  # as of 1,000 rows
        step = numpy.eye(len(gram)) - 2 * lr * gram
        moved = numpy.eye(len(gram)) - numpy.linalg.matrix_power(step, num_steps)
        own = numpy.linalg.lstsq(half_A, half_b, rcond=None)[0]
        pull, target = pull + moved, target + moved @ own
    return numpy.linalg.solve(pull, target)


settled, shares = error(settles(500)) - optimum, []
for seed in range(3):
    same = solve(A, b, devices=two, method="averaging", num_epochs=10, seed=seed)
    shares.append(100 * (1 - settled / (same.residual_norm - optimum)))
print("% of the miss due to drawing rows:", *(f"{share:.0f}" for share in shares))
local_steps = [1, 2, 5, 20, 50, 200, 500, 2000, 5000]
excess = [error(settles(H)) - optimum for H in local_steps]
print(f"without drawing, one step between averages: {excess[0]:.0e} too much")
figure = Figure(figsize=(6, 3), layout="constrained")
axes = figure.subplots()
axes.loglog(local_steps[1:], excess[1:], "o-")
axes.set(xlabel="local steps between two averages", ylabel="excess of ||A x - b||")
chapter.show(figure, "local-steps")

# %% [markdown]
# The Gram matrices of two random halves differ little, so the second reason is small
# here. The errors of two draws are independent, so their average is still
# `1 / sqrt(2) = 0.7` times as large as one.
#
# Without drawing, the excess grows with the number of local steps. With one step it is
# rounding: averaging after every step *is* summing the gradients. Training that
# averages rarely is called *local SGD* (Chapter 7).
#
# Averaging can be repaired. In *consensus ADMM* [4] each device minimises one half of
# its own ||A_k x - b_k||^2 plus a penalty (rho / 2) ||x - z + u_k||^2. The penalty
# pulls x towards the consensus z, and u_k accumulates the deviations. ADMM also sends
# one vector per round, but converges to the optimum for any positive rho.


# %%
def admm(num_rounds, rho):
    n, solvers = A.shape[1], []
    for A_k, b_k in zip(A_shards, b_shards):
        penalty = rho * np.eye(n, dtype="float64", ctx=A_k.ctx)
        L = np.linalg.cholesky(np.dot(A_k.T, A_k) + penalty)
        solvers.append((L, np.dot(A_k.T, b_k)))
    zs = [np.zeros(n, dtype="float64", ctx=A_k.ctx) for A_k in A_shards]
    us = [z.copy() for z in zs]
    for _ in range(num_rounds):
        xs = [
            solve_lower(L, solve_lower(L, c + rho * (z - u)), transpose=True)
            for (L, c), z, u in zip(solvers, zs, us)
        ]
        zs = [x + u for x, u in zip(xs, us)]
        allreduce(zs)
        zs = [z / len(zs) for z in zs]
        us = [u + x - z for u, x, z in zip(us, xs, zs)]
    return zs[0].asnumpy()


smallest, *_, biggest = numpy.linalg.eigvalsh(A[:500].T @ A[:500])
rho = math.sqrt(smallest * biggest)
print(f"eigenvalues of the first half: {smallest:.0f} to {biggest:.0f}, rho {rho:.0f}")
for num_rounds in (20, 100, 400):
    x = admm(num_rounds, rho)
    print(f"ADMM, {num_rounds} rounds: {error(x):.9f}, LAPACK: {optimum:.9f}")
assert numpy.allclose(x, best, rtol=1e-6)

# %% [markdown]
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
# 3. A "GPU" is one turn of a NumPy loop: the printed 20.45 s [1] are the time of a CPU.
# 4. The script calls `check`, which appends the error of the average, *before* it
#    prints the last two entries as the errors of both GPUs. The second printed error,
#    28.81, is therefore the error of the average, and the 28.75 of "GPU 1" (122.82 in a
#    second run) belongs to the second "GPU".
# 5. The "rms between x and theta", 0.387 (0.954), is a norm, which is not divided by
#    the number of elements.
#
# Does the mended method have a smaller error? Our record contains both methods at the
# published sizes, with one random A and b each:

# %%
record = chapter.record("benchmarks/least_squares.jsonl")
errors, least = {}, {}
for sample in record.lines_of(ArmSample):
    if sample.error is not None:
        least[sample.work] = min(sample.error, least.get(sample.work, math.inf))
        errors[sample.work, sample.arm.split(",")[0]] = sample.error
for work, ratio in (
    ("10,000 x 1,000", 28.81 / 27.35),
    ("100,000 x 1,000", 124.77 / 90.83),
):
    published, mended = (
        errors[work, arm] / least[work]
        for arm in ("averaging as published", "averaging")
    )
    print(f"{work}: the notes print {ratio:.3f} times the least,")
    print(f"    published method {published:.3f}, mended {mended:.3f}")
data = datasets.uniform_problem(10_000, 1_000)  # of the record
run = chapter.record(f"{records['cpu']}-averaging-as-published-cpu2.jsonl")
theta = numpy.array(run.lines_of(PointRecord)[-1].x)
x = solve(data.A, data.b, devices=two).x
print(f'"rms" of the notes 0.387, of our record {numpy.linalg.norm(x - theta):.3f}')

# %% [markdown]
# No: after the same number of epochs mended averaging is *worse*. In an epoch the
# published program takes 1,000 steps one after the other. The mended program takes 500
# at the same time on each device. The published average, however, is the mean of an x
# after 500 steps and an x after 1,000. We therefore also try 750 and 1,000 mended steps
# per device, on a smaller problem:

# %%
more = numpy.random.default_rng(1)
problem = more.random((1000, 100)), more.random(1000)
for seed in range(3):
    ends = {}
    for independent, steps in ((False, 500), (True, 500), (True, 750), (True, 1000)):
        how = {"independent": independent, "steps_per_epoch": steps, "seed": seed}
        same = solve(*problem, devices=two, method="averaging", num_epochs=4, **how)
        ends[f"mended, {steps}" if independent else "published"] = same.residual_norm
    print(f"seed {seed}:", ", ".join(f"{k} {e:.2f}" for k, e in ends.items()))
    assert abs(ends["mended, 750"] / ends["published"] - 1) < 0.01
    assert ends["mended, 1000"] < ends["published"] < ends["mended, 500"]

# %% [markdown]
# With 750 steps the errors of both programs differ by less than 1 %. The fault is worth
# 1.5 times the steps per epoch, but it removes the parallelism.
#
# Was the larger problem "100 times larger, (100,000, 10,000)", as the notes say [1]?
#
# *Predict before you run*: b is uniform in [0, 1), with a variance of 1/12, and A is
# independent of it. Each of the n columns can explain one of the m dimensions of b.
# What is the least ||A x - b|| to expect, for 1,000 x 50?


# %%
def expected(m, n):
    """About the least ||A x - b|| of uniform A and b.

    A has no column of ones to imitate b's mean of 1/2. The best substitute for it has
    an error of its own, which adds the last factor.
    """
    return math.sqrt((m - n) / 12 * (1 + 3 / (3 * n + 1)))


chapter.predict("||A x - b|| of 1,000 x 50", None)
print(f"1,000 x 50: expected {expected(1000, 50):.3f}, LAPACK {optimum:.3f}")
for m, n, published in (
    (10_000, 1_000, "27.35"),
    (100_000, 10_000, "90.83"),
    (100_000, 1_000, "90.83"),
):
    print(f"{m:,} x {n:,}: expected {expected(m, n):.2f}, the notes print {published}")
chapter.answer("||A x - b|| of 1,000 x 50", optimum)
chapter.score()
small, large = (
    numpy.median(
        [s.seconds for s in record.lines if (s.work, s.arm) == (work, "numpy")]
    )
    for work in ("10,000 x 1,000", "100,000 x 1,000")
)
print(f"lstsq: the notes print 1.42 s and 9.00 s, {9.00 / 1.42:.1f} times,")
print(f"    our record {small:.2f} s and {large:.2f} s, {large / small:.1f} times")

# %% [markdown]
# The m squared deviations of b from 1/2 add up to about m / 12, with a standard
# deviation of sqrt(m / 180). The root of this sum therefore has a standard deviation of
# about `sqrt(m / 180) / (2 * sqrt(m / 12)) = 0.13`, for any m. The printed 90.83 lies
# within this distance of the expectation for 1,000 columns, and far from the
# expectation for 10,000. So the second problem had ten times as many numbers as the
# first, not a hundred times.
#
# The published times agree. An epoch works on 1,000 drawn rows, so with the same
# columns 20 epochs take half as long as 40: the notes print 10.86 s and 20.45 s. The
# arithmetic of `lstsq` is proportional to m n^2. It grows 10 times with ten times the
# rows, and 1,000 times with ten times the columns as well. Compare with the last line.
#
# ## Where does the time go?
#
# Like the notes, we profile an epoch of averaging. `cumtime` includes the functions
# that a function calls.

# %%
with cProfile.Profile() as profile:
    averaging(1)
stats = pstats.Stats(profile).strip_dirs().sort_stats("cumulative")
_ = stats.print_stats(r"averaging|\(dot\)|asnumpy|_impera")
functions = stats.get_stats_profile().func_profiles
share = functions["asnumpy"].cumtime / functions["averaging"].cumtime
print(f"waiting for the devices: {100 * share:.0f} % of the epoch")

# %% [markdown]
# The `2 * 500 * 2 = 2,000` calls of `dot` only enqueue work, and Python waits in
# `asnumpy`. If the printed share is small, issuing the calls determines the time.
#
# Finally, we run all methods on your machine, on 4,000 x 400, or with `--preset book`
# on 10,000 x 1,000. A single CPU context uses all cores, and two use one each, unless
# you add `--threads 1`.

# %%
if __name__ == "__main__":
    chapter.measure("least_squares")

# %% [markdown]
# ## An A larger than memory
#
# Dask [5] is made for arrays that do not fit into memory. It cuts a file into *chunks*
# of rows and reads a chunk when it is needed. Here it sums the Gram matrix of [A b]
# over chunks, as our devices do over their rows. Beside it stands the package's x.
#
# With two products, A^T A and A^T b, a scheduler may keep every chunk of the first for
# the second, and the memory grows with the rows. One product of [A b] cannot do that.

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
# > for gradient descent, bare normal equations and CGLS with one all-reduce per step; p
# > = 1 for TSQR, CGLS from the residual, and, below a condition of about 1e6, normal
# > equations with one step of refinement.
#
# With summed gradients N devices compute what one computes, up to rounding. With
# averaged answers they do so only if they average after every step. ADMM repairs this.
#
# ## Exercises
#
# 1. Try `admm` with rho of 30, 300 and 3,000. After how many rounds is each within
#    `5e-10 * optimum` of LAPACK? *(About 1,090, 121 and 804. With a small rho the
#    devices disagree for long. With a large one they move little per round.)*
# 2. Leave out the all-reduce in `gradient`. *(The replicas no longer agree. Each
#    approaches the solution of its own half of the rows.)*
# 3. Write the step as a mean over rows: `lr` is 1,000 / `largest`, and the sum of the
#    gradients is divided by the 1,000 rows of A. Then divide by the 500 rows of a
#    shard. *(The first change leaves the errors as above. The second makes the step 2 /
#    `largest`, the limit: x oscillates and does not converge.)*
# 4. *On paper.* Which method for 10,000,000 x 20 with a condition of 10, which for
#    20,000 x 5,000 with a condition of 1e9, and which for 1,000,000 x 100,000?
#    *(`normal`: one pass, 420 numbers sent. TSQR: the squared condition would leave no
#    digit. CGLS: even the Gram matrix would have `8 * 1e10` bytes.)*
# 5. *On paper.* A has a condition of 100. How many steps of gradient descent are enough
#    to reduce the error by 1e-6, and how many of CGLS to reduce ||A (x - best)|| as
#    much? *(`6 ln(10) * 10^4 = 138,000`. As `(99 / 101)^T` is about `exp(-2 T / 100)`,
#    CGLS needs at most about `100 / 2 * ln(2e6) = 725`.)*
# 6. Count the numbers that a device hands to the all-reduces until ||A x - b|| is
#    within a relative distance of 5e-7 of LAPACK's, for n = 50. *(CGLS takes 5 steps of
#    51 numbers, and 50 for the first gradient, 305 in all. `normal`: 2,550. TSQR: 1,326
#    in a triangle. Gradient descent: 964 steps of 50, 48,200.)*
#
# **Puzzles.** `least_squares`, in `python -m teaching.puzzles`.
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
# - [4] Boyd et al., "Distributed Optimization and Statistical Learning via ADMM",
#   section 8.2, <https://stanford.edu/~boyd/papers/admm_distr_stats.html>
# - [5] Dask, <https://docs.dask.org>
