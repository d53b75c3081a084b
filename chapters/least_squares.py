# %% [markdown]
# # Data-parallel least squares
#
# Source: the least-squares notes, class `LeastSquare` and its script,
# <https://github.com/Daegeun02/GPGPU> (`2022_05_03.ipynb`, in Korean)
#
# Find the x that minimises ||A x - b||, with the rows of A shared out over devices.
# The problem is small enough to check every digit, and it has the parts of a network's
# training: a batch that is split, gradients that are summed, replicas that must agree.
# Run it as a script, or cell by cell as a notebook:
#
#     python chapters/least_squares.py --devices auto --num-devices 1,2
#     d2lpar run least_squares --preset book
#
# **What you will learn.**
#
# - how to split a least-squares problem by rows, and what each device must send;
# - why averaging the devices' answers is not the same as summing their gradients;
# - how the miss grows with the local steps between two averages (local SGD), and a
#   cure;
# - four solvers in about ten lines each, all exact: gradient descent, conjugate
#   gradients (CGLS), normal equations, and TSQR;
# - what each costs in arithmetic, in communication and in digits;
# - how to check a published number without repeating the run.
#
# ![Rows of A over devices](../docs/drawings/rows-over-devices.svg)

# %%
import cProfile
import math
import pstats

import numpy
from matplotlib.figure import Figure

from d2lpar import allreduce, chapter, devices, mx, np, split_batch
from d2lpar.least_squares import LeastSquare, solve

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")

# %% [markdown]
# ## The problem and its answer
#
# A and b are uniform in [0, 1), as in the notes, but smaller: 1,000 x 50. LAPACK has
# the answer that everything below is compared with.

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
# Device k gets half of the rows of A and the same half of b, once, at the start. After
# that only short vectors travel: x has 50 numbers, however many rows there are.
#
# The sum of squares splits in the same way, and so does its gradient:
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
# ## The notes' method: descend alone, then average
#
# In each epoch a device draws 1,000 of its rows and takes 500 steps of gradient descent
# on them without communication. Then all devices continue from the average of their x:
# one vector per epoch is all that they send.
#
# *Predict before you run*: (1) Each device descends perfectly well on its own rows.
# Does the average reach LAPACK's error? (2) Suppose the second device starts from the
# first one's result instead of from the average, as in the notes' code
# (`independent=False`). Is that better after one epoch, and after five?


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


chapter.predict("better after one epoch", None)  # "independent" or "one by one"
print("epochs:               1           5          40")
first_epoch = {}
for independent in (True, False):
    how = {"method": "averaging", "independent": independent, "num_epochs": 40}
    same = solve(A, b, devices=two, **how)
    after = [same.history[k - 1].residual_norm for k in (1, 5, 40)]
    print(
        "independent" if independent else "one by one ", *(f"{e:11.6f}" for e in after)
    )
    assert math.isclose(error(averaging(1, independent)), after[0], rel_tol=1e-8)
    first_epoch["independent" if independent else "one by one"] = after[0]
    if independent:
        after_40 = after[-1]
print(f"LAPACK: {optimum:.6f}")
chapter.answer("better after one epoch", min(first_epoch, key=first_epoch.get))

# %% [markdown]
# **What you see.** Neither reaches LAPACK's error, and 40 epochs are hardly better than
# five. After one epoch the devices that work one after the other are ahead, because the
# second one continues the first one's 500 steps. But then nothing runs in parallel.
#
# The package does not take 500 steps, and yet the assertion holds. Steps with the same
# A and b are a polynomial in A^T A, and some ten products with A give its value up to
# rounding (`d2lpar/least_squares/averaging.py`).
#
# ## Why the average misses
#
# There are two reasons. A device approaches the solution of the rows that it has
# *drawn*, with replacement, so that some occur twice and others not at all. And even
# with all of its rows, it approaches the solution of *its* rows, and the average of two
# solutions is not the solution of all rows.
#
# The second reason depends on the number of local steps between two averages. Without
# drawing, the average settles at a point that linear algebra gives at once: device k's
# local steps multiply its distance from its own solution by a matrix.
#
# *Predict before you run*: how much of the miss is due to the drawing? And what is left
# of it if the devices average after every single step?


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


chapter.predict("% of the miss due to drawing rows", None)
drawn, settled = after_40 - optimum, error(settles(500)) - optimum
print(f"500 local steps: {drawn:.4f} too much with drawn rows, {settled:.4f} without")
chapter.answer("% of the miss due to drawing rows", 100 * (1 - settled / drawn))
local_steps = [1, 2, 5, 20, 50, 200, 500, 2000, 5000]
excess = [error(settles(H)) - optimum for H in local_steps]
for H, e in zip(local_steps, excess):
    print(f"{H:5} local steps between averages: ||A x - b|| is {e:.1e} too large")
figure = Figure(figsize=(6, 3), layout="constrained")
axes = figure.subplots()
axes.loglog(local_steps[1:], excess[1:], "o-")
axes.set(xlabel="local steps between two averages", ylabel="excess of ||A x - b||")
chapter.show(figure, "local-steps")

# %% [markdown]
# **What you see.** Most of the miss comes from drawing rows. The rest grows with the
# number of local steps, and with one step it is rounding: averaging after every step
# *is* summing the gradients, because the average of two steps from the same x is a step
# along the average gradient. Training that averages rarely is called *local SGD*, or
# *federated averaging* where the data stays with its owners. It saves communication and
# changes the result ([Stich 2018](https://arxiv.org/abs/1805.09767)).
#
# The published averaging has a cure. In consensus ADMM (the alternating direction
# method of multipliers) each device solves its own problem with a penalty for leaving
# the average, and remembers in u_k how far it had to give way. It sends as little, one
# vector per round, and reaches the optimum ([Boyd et al. 2011, section
# 8.2](https://stanford.edu/~boyd/papers/admm_distr_stats.html)).


# %%
def admm(num_rounds, rho):
    n, solvers = A.shape[1], []
    for A_k, b_k in zip(A_shards, b_shards):
        penalty = rho * np.eye(n, dtype="float64", ctx=A_k.ctx)
        inverse = np.linalg.inv(np.dot(A_k.T, A_k) + penalty)
        solvers.append((inverse, np.dot(A_k.T, b_k)))
    zs = [np.zeros(n, dtype="float64", ctx=A_k.ctx) for A_k in A_shards]
    us = [z.copy() for z in zs]
    for _ in range(num_rounds):
        xs = [
            np.dot(inverse, c + rho * (z - u))
            for (inverse, c), z, u in zip(solvers, zs, us)
        ]
        zs = [x + u for x, u in zip(xs, us)]
        allreduce(zs)
        zs = [z / len(zs) for z in zs]
        us = [u + x - z for u, x, z in zip(us, xs, zs)]
    return zs[0].asnumpy()


for num_rounds in (20, 100, 400):
    x = admm(num_rounds, rho=300)
    print(f"ADMM, {num_rounds} rounds: {error(x):.9f}, LAPACK: {optimum:.9f}")
assert numpy.allclose(x, best, rtol=1e-6)

# %% [markdown]
# ## Three faults of the notes' code
#
# The package has the notes' class with its faults mended, called here as in their
# script; `independent=False` restores the first fault.

# %%
lstsq = LeastSquare(A, b, epoches=5)
theta = lstsq.run()
print(f"error: {lstsq.check(theta):.6f}")
# check() has added the last entry, as in the notes; the devices' stand before it.
print(f"GPU1 error: {lstsq.error_list[-3]:.6f}, GPU2 error: {lstsq.error_list[-2]:.6f}")

# %% [markdown]
# **First**, `x = self.x_hat` copies nothing, and `x -= ...` works in place. So the
# second "GPU" begins where the first one ended. Four lines show it:

# %%
x_hat = numpy.zeros(3)
x = x_hat
x -= 1
print("x_hat after x -= 1:", x_hat)

# %% [markdown]
# **Second**, both halves draw row numbers below the length of the *first* half, so that
# the last row of an odd number is never used. **Third**, a "GPU" is one turn of a NumPy
# loop: the 20.45 s that
# [the notes](https://github.com/Daegeun02/GPGPU) print are the time of a CPU, of which
# they say that about 25 % was in use. Their code, as published, is
# `benchmarks/peers/least_squares_notes.py`.

# %% [markdown]
# ## Sum the gradients, and N devices compute what one computes
#
# *Predict before you run*: now the devices talk in every step: an all-reduce of A^T (A
# x - b), 50 numbers. (1) Will x on one device and x on two differ, and in which digit?
# (2) The condition number of this A is about 16. How many steps does it take for the
# gradient to shrink to 1e-8 of what it was?


# %%
def gradient(A_shards, b_shards, num_steps, lr):
    xs = [np.zeros(A_k.shape[1], dtype="float64", ctx=A_k.ctx) for A_k in A_shards]
    shards = [(A_k.T, A_k, b_k) for A_k, b_k in zip(A_shards, b_shards)]
    for _ in range(num_steps):
        gs = [
            np.dot(A_T, np.dot(A_k, x_k) - b_k)
            for (A_T, A_k, b_k), x_k in zip(shards, xs)
        ]
        allreduce(gs)
        for x_k, g in zip(xs, gs):
            x_k -= lr * g
    return [x_k.asnumpy() for x_k in xs]


chapter.predict("steps of gradient descent", None)
largest = numpy.linalg.norm(A, 2) ** 2  # the largest eigenvalue of A^T A
print(f"condition of A: {numpy.linalg.cond(A):.1f}")
for num_steps in (100, 2000):
    first, second = gradient(A_shards, b_shards, num_steps, lr=1 / largest)
    print(f"{num_steps} steps: {error(first):.6f}, replicas agree:", end=" ")
    print((first == second).all())
(alone,) = gradient(*split_batch(A, b, two[:1]), 2000, lr=1 / largest)
print(f"one device or two: x differs by {abs(alone - first).max():.0e}")
same = solve(A, b, devices=two, method="gradient")
print(f"d2lpar: {same.residual_norm:.6f} after {same.history[-1].iteration} steps")
assert abs(error(first) - same.residual_norm) < 1e-6
chapter.answer("steps of gradient descent", same.history[-1].iteration)

# %% [markdown]
# **What you see.** Both replicas hold the same bits, because both receive the same sum.
# One device and two differ in the last digits, because the sum is rounded in another
# order. And 100 steps are not enough: gradient descent is slow. In each step the error
# of x shrinks to `1 - 1 / condition^2` of what it was, here to `1 - 1 / 15.6^2 =
# 0.996`.
#
# Any step size below 2 / `largest` converges. The package finds `largest` by power
# iteration, with one more all-reduce per product, and steps until the gradient has
# shrunk to 1e-8 of what it was.

# %% [markdown]
# ## Conjugate gradients: the same communication, few steps
#
# CGLS also needs one product with A and one with its transpose per step, and chooses
# direction and step length by what it has seen. Device k sends A_k^T A_k p and
# ||A_k p||^2 together: one all-reduce of n + 1 numbers.


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
same = solve(A, b, devices=two, method="cgls")
print(f"here: {error(x):.6f} after {steps} steps")
print(f"d2lpar: {same.residual_norm:.6f} after {same.history[-1].iteration} steps")
assert numpy.allclose(x, best, rtol=1e-7) and numpy.allclose(same.x, best, rtol=1e-7)

# %% [markdown]
# **What you see.** CGLS needs a small part of gradient descent's steps, printed above,
# and each step costs the same. The package also computes the true gradient at the end,
# because the updated one drifts away from it, and estimates the condition of A by a few
# such steps for a random vector.

# %% [markdown]
# ## Normal equations: one all-reduce in all
#
# At the minimum the gradient is zero: A^T A x = A^T b. Device k computes its Gram
# matrix A_k^T A_k, and the sum of these matrices is the Gram matrix of all rows. So
# n^2 + n numbers are all-reduced, once, and almost all the work is a matrix product,
# which devices do best.


# %%
def normal(A_shards, b_shards):
    Gs = [np.dot(A_k.T, A_k) for A_k in A_shards]
    cs = [np.dot(A_k.T, b_k) for A_k, b_k in zip(A_shards, b_shards)]
    allreduce(Gs)
    allreduce(cs)
    L = np.linalg.cholesky(Gs[0])
    return np.linalg.solve(L.T, np.linalg.solve(L, cs[0])).asnumpy()


x = normal(A_shards, b_shards)
print(f"here: {error(x):.6f}, d2lpar: {packaged.residual_norm:.6f}")
assert numpy.allclose(x, best, rtol=1e-9)
assert numpy.allclose(packaged.x, best, rtol=1e-9)

# %% [markdown]
# ## TSQR: reduce with a QR instead of a sum
#
# An all-reduce need not add. A QR of device k's rows of [A b] leaves a triangle R_k of
# n + 1 rows; two triangles stacked, and reduced by another QR, give the triangle of all
# rows. Nothing is squared, so no digits are lost. The last number on the diagonal is
# the error itself.


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
    return np.linalg.solve(R[:-1, :-1], R[:-1, -1]).asnumpy(), abs(float(R[-1, -1]))


x, residual = tsqr(A_shards, b_shards)
same = solve(A, b, devices=two, method="tsqr")
print(f"here: {error(x):.6f}, on the diagonal: {residual:.6f}")
print(f"d2lpar: {same.residual_norm:.6f}, condition about {same.condition:.0f}")
assert numpy.allclose(x, best, rtol=1e-9) and numpy.allclose(same.x, best, rtol=1e-9)

# %% [markdown]
# ## What squaring costs
#
# *Predict before you run*: two columns are made almost equal, so that the condition of
# A is 2e6, and b is A times a known x. In float64, with its 16 digits, how many digits
# of x does TSQR find, and how many do the normal equations?

# %%
chapter.predict("digits by TSQR", None)
chapter.predict("digits by normal equations", None)
A_bad = A.copy()
A_bad[:, 1] = A_bad[:, 0] + 1e-5 * A_bad[:, 1]
x_true = rng.random(50)
b_bad = A_bad @ x_true
bad_shards = split_batch(A_bad, b_bad, two)
print(f"condition: {numpy.linalg.cond(A_bad):.0e}")
off = {}
for name, x in (("tsqr", tsqr(*bad_shards)[0]), ("normal", normal(*bad_shards))):
    off[name] = abs(x - x_true).max()
    print(f"{name}: x is off by {off[name]:.0e}")
chapter.answer("digits by TSQR", round(-math.log10(off["tsqr"])))
chapter.answer("digits by normal equations", round(-math.log10(off["normal"])))

# %% [markdown]
# **What you see.** TSQR loses about as many digits as the condition has, and the normal
# equations twice as many, because the Gram matrix has the *square* of A's condition.
# From a condition of 1e8 on they have no digit left. The package estimates the
# condition with a few steps, refines the answer once, warns, and refuses what is
# hopeless:

# %%
A_bad[:, 1] = A_bad[:, 0] + 1e-9 * A_bad[:, 2]
try:
    solve(A_bad, b_bad, devices=two, method="normal")
except ValueError as refused:
    print(refused)

# %% [markdown]
# ## Which one?
#
# For m rows, n columns, N devices, T steps:
#
# | | arithmetic of a device | all-reduced | loses digits |
# |---|---|---|---|
# | averaging | T x 4 n x (rows drawn) | n per epoch | misses the optimum |
# | gradient | T x 4 m n / N | n per step, thousands of steps | no |
# | CGLS | T x 4 m n / N | n + 1 per step, tens of steps | no |
# | normal | m n^2 / N + n^3 / 3 | n^2 + n, once | twice as many |
# | TSQR | 2 m n^2 / N, then 2 N n^3 on one device | (n + 1)^2 per device, once | no |
#
# `normal` is the default, because nearly all its work is one matrix product. Use CGLS
# where n^2 numbers are too many to send or to hold (the next chapter), and TSQR where A
# is ill-conditioned.
#
# Choose by the method before you choose the number of devices.
# [In our records](../docs/peers.md#least-squares-by-the-same-method) of 10,000 x 1,000,
# `normal` on two contexts takes 0.223 s and NumPy's `lstsq`, an SVD, 0.707 s. That is
# the method's doing: NumPy's own normal equations, `solve(A.T @ A, A.T @ b)`, take
# 0.165 s with all cores.
#
# ## Where does the time go?
#
# The notes keep a profile of their run. The cell below profiles CGLS. Nearly all the
# time is spent in `_products`, the two products with A and their all-reduce, where
# Python hands work to the devices and waits for it. With a matrix as small as this a
# good part of that is `to_devices`, which copies the direction p to the devices.
# `--profile` writes more.

# %%
with cProfile.Profile() as profile:
    solve(A, b, devices=two, method="cgls")
_ = pstats.Stats(profile).strip_dirs().sort_stats("cumulative").print_stats(8)

# %% [markdown]
# ## A published number, checked
#
# After 10,000 x 1,000 [the notes](https://github.com/Daegeun02/GPGPU) run a larger
# problem: "the size of the data set increased by 100 times, to (100,000, 10,000)". They
# print an optimum of 90.83, and 9.0 s for `numpy.linalg.lstsq`, where the smaller
# problem took 1.42 s.
#
# *Predict before you run*: b is uniform in [0, 1), with a variance of 1/12, and A has
# nothing to do with it. Each of the n columns can explain one of the m dimensions of b.
# What is left of ||A x - b|| at best, for 1,000 x 50?


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

# %% [markdown]
# **What you see.** The notes' second matrix had 1,000 columns, and so ten times as much
# data as the first, not a hundred times. Their seconds agree with that: for 100,000 x
# 10,000, `lstsq` has 1,000 times the arithmetic of the first problem, and would not
# take 6 times as long.
#
# ## All methods, measured
#
# Now on 4,000 x 400, or with `--preset book` on the notes' 10,000 x 1,000: each method
# on one device and on two, in fresh processes, with figures and a table of results.
#
# *Predict before you run*: which methods are faster on two devices than on one?

# %%
if __name__ == "__main__":
    runs = chapter.measure("least_squares")

# %% [markdown]
# **What you see.** With few rows a second context can lose with every method: each
# all-reduce costs a fixed time, and averaging gives each device as much work as one
# alone has. With 10,000 x 1,000 and one thread per context, two contexts take 0.454 s
# where one takes 0.701 s (CGLS), 0.222 s and 0.322 s (`normal`), 1.22 s and 1.69 s
# (TSQR; [table](../figures/least_squares/book-1thread-results.txt)). On H200s a second
# GPU gains nothing with any method: `normal` takes 0.0354 s, and 0.0304 s on one, CGLS
# 0.0705 s and 0.0451 s ([table](../figures/h200/least_squares/book-results.txt)). For a
# GPU this problem is too small to be worth an all-reduce.
#
# ## Summary
#
# > **Takeaway.** The gradient of a sum over rows is a sum of gradients: an all-reduce
# > of n numbers per step, or of n^2 + n once. For 10,000 x 1,000 two contexts take
# > 0.222 s and one 0.322 s with the normal equations
# > ([record](../figures/least_squares/book-1thread-results.txt)).
#
# - A sum over rows is a sum over devices: split the rows once, then all-reduce short
#   vectors.
# - Summed gradients make N devices compute what one computes, up to rounding. Averaged
#   answers do not; the more local steps between averages, the larger the miss. ADMM
#   repairs it.
# - CGLS needs the same all-reduce as gradient descent and far fewer of them. The normal
#   equations and TSQR need one.
# - Squaring A squares its condition. Ask for the condition before choosing.
# - A number can be checked by what it must be, without the run.
#
# ## Exercises
#
# 1. **Independent against shared x.** Solve 4,000 x 400 by `method="averaging"` with
#    `num_epochs=40`, independent and not, and print `residual_norm` of the history
#    after 1, 5 and 40 epochs. *(The shared x is ahead per epoch at first, because its
#    epoch is the work of two devices in a row. In the end the independent one stops
#    lower, because it averages two samples of rows.)*
# 2. **Leave out the all-reduce** in `gradient`. *(The replicas no longer agree, and
#    each goes to the solution of its own half of the rows.)*
# 3. **Divide by the shard instead of the batch.** Write the step as a mean over rows:
#    `lr` is 1,000 / `largest`, and the sum of the gradients is divided by the 1,000
#    rows of A. Then divide by the 500 rows of a shard; then take the mean of the
#    devices' gradients and divide by 1,000. *(Divided by 1,000 rows, the errors are
#    those from above. Divided by 500 the step is 2 / `largest`, the limit: x swings to
#    and fro and does not converge. With the mean every step is half as long, so 200
#    steps do what 100 did.)*
# 4. *On paper.* Which method for 10,000,000 x 20 with a condition of 10, which for
#    10,000 x 5,000 with a condition of 1e9, and which for 1,000,000 x 100,000?
#    *(`normal`: one pass, 420 numbers sent. TSQR: the squared condition would leave no
#    digit. CGLS: the Gram matrix would have `8 * 1e10` bytes.)*
# 5. *On paper.* A has a condition of 100. By what does a step of gradient descent
#    shrink the error, and how many steps are six digits? *(`1 - 1 / 100^2`, so `6
#    ln(10) * 10^4 = 138,000` steps. CGLS needs about `100 / 2 * ln(2e6) = 725` at
#    most.)*
# 6. **Count what is sent** until the error agrees with LAPACK's to six digits, for n =
#    50. Stop `cgls` and `gradient` there. *(To a relative error below 5e-7: CGLS takes
#    5 steps of 51 numbers, 255 per device. `normal`: 2,550. TSQR: 2,601. Gradient
#    descent: 964 steps of 50, 48,200. For 10,000 x 1,000 CGLS takes 7 steps, 7,007
#    numbers against a million for `normal`.)*
