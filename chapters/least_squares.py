# %% [markdown]
# # Data-parallel least squares
#
# Source: the least-squares notes, class `LeastSquare` and its script,
# <https://github.com/Daegeun02/GPGPU> (`2022_05_03.ipynb`, in Korean)
#
# Find the x that minimises ||A x - b||, with the rows of A shared out over devices.
# The problem is small enough to check every digit, and it has everything that training
# a network has: a batch that is split, gradients that are summed, replicas that must
# agree. As a script, or cell by cell as a notebook:
#
#     python chapters/least_squares.py --devices auto --num-devices 1,2
#     d2lpar run least_squares --preset book
#
# **What you will learn.**
#
# - how to split a least-squares problem by rows, and what each device must send;
# - why averaging the devices' answers is not the same as summing their gradients;
# - four solvers in about ten lines each, all exact: gradient descent, conjugate
#   gradients (CGLS), normal equations, and TSQR;
# - what each costs in arithmetic, in communication and in digits.
#
# ![Rows of A over devices](../docs/drawings/rows-over-devices.svg)

# %%
import cProfile
import pstats

import numpy

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
# In each epoch a device draws 1,000 of its rows, takes 500 steps of gradient descent on
# them without asking anybody, and then all go on from the average of their x. One
# vector per epoch is all the communication.
#
# *Predict before you run*: (1) Each device descends perfectly well on its own rows.
# Does the average reach LAPACK's error? (2) Suppose the second device started from the
# first one's result instead of from the average, as the notes' code does
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


for num_epochs in (1, 5):
    for independent in (True, False):
        x = averaging(num_epochs, independent)
        how = {"num_epochs": num_epochs, "independent": independent}
        same = solve(A, b, devices=two, method="averaging", **how)
        print(f"epoch {num_epochs}, independent={independent}: {error(x):.6f}")
        assert numpy.allclose(x, same.x, rtol=1e-8)
print(f"LAPACK: {optimum:.6f}")

# %% [markdown]
# The assertion holds, although the package does not take 500 steps. Steps with the same
# A and b are a polynomial in A^T A, and some ten products with A give its value up to
# rounding (`d2lpar/least_squares/averaging.py`). That makes it about twice as fast as
# the notes' code.
#
# After one epoch the devices that work one after the other are ahead: the average of
# 500 steps and 1,000 steps is worth about 750. But then nothing is parallel, so on two
# devices that epoch takes twice as long. After five epochs both stand still, and
# neither is at the optimum.
#
# **Why the average misses.** Each device approaches the solution of *its* rows, and the
# average of two solutions is not the solution of both. Infinitely many steps do not
# help:

# %%
halves = [
    numpy.linalg.lstsq(half_A, half_b, rcond=None)[0]
    for half_A, half_b in ((A[:500], b[:500]), (A[500:], b[500:]))
]
for name, x in (("first half", halves[0]), ("second half", halves[1])):
    print(f"x of the {name}: {error(x):.6f}")
print(f"their average: {error(sum(halves) / 2):.6f}, the optimum: {optimum:.6f}")

# %% [markdown]
# ## Three faults of the notes' code
#
# The notes' class is called here as in their script, with the faults mended
# (`independent=False` brings the first one back):

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
# **Second**, both halves draw row numbers below the length of the *first* half: of an
# odd number of rows the last one is never used. **Third**, a "GPU" is one turn of a
# NumPy loop: the 20.45 s that the notes print are the time of a CPU, of which the notes
# say that about 25 % was in use. `peers/least_squares_notes.py` has their code as
# published.

# %% [markdown]
# ## Sum the gradients, and N devices compute what one computes
#
# *Predict before you run*: Now the devices talk in every step: an all-reduce of A^T (A
# x - b), 50 numbers. (1) Will x on one device and x on two differ, and in which digit?
# (2) The condition number of this A is about 16. Are 100 steps enough for six digits?


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

# %% [markdown]
# Both replicas hold the same bits, because both receive the same sum. One device and
# two differ in the last digit, because the sum is rounded in another order. And
# gradient descent is slow: the error of x shrinks by 1 - 1/condition^2 per step, here
# by 0.4 %. Any step size below 2 / `largest` converges. The package finds `largest` by
# power iteration, with one more all-reduce per product, and steps until the gradient
# has shrunk to 1e-8 of what it was.

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
    for step in range(1, 20 * n):  # noqa: B007
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
        if gamma <= tol**2 * start:
            break
        for s, p in zip(ss, ps):
            p[:] = s + gamma / before * p
    return xs[0].asnumpy(), step


x, steps = cgls(A_shards, b_shards)
same = solve(A, b, devices=two, method="cgls")
print(f"here: {error(x):.6f} after {steps} steps")
print(f"d2lpar: {same.residual_norm:.6f} after {same.history[-1].iteration} steps")
assert numpy.allclose(x, best, rtol=1e-7) and numpy.allclose(same.x, best, rtol=1e-7)

# %% [markdown]
# Fifteen steps, where gradient descent took 2,900. The package also computes the true
# gradient at the end, because the updated one drifts away from it, and estimates the
# condition of A by a few such steps for a random vector.

# %% [markdown]
# ## Normal equations: one all-reduce in all
#
# At the minimum the gradient is zero: A^T A x = A^T b. Device k computes its Gram
# matrix A_k^T A_k; the sum over the devices is that of all rows. That is n^2 + n
# numbers to all-reduce, once, and almost all the work is a matrix product, which
# devices are best at.


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
# *Predict before you run*: Two columns are made almost equal, so that the condition of
# A is 2e6, and b is A times a known x. In float64, with its 16 digits, how many digits
# of x does TSQR find, and how many do the normal equations?

# %%
A_bad = A.copy()
A_bad[:, 1] = A_bad[:, 0] + 1e-5 * A_bad[:, 1]
x_true = rng.random(50)
b_bad = A_bad @ x_true
bad_shards = split_batch(A_bad, b_bad, two)
print(f"condition: {numpy.linalg.cond(A_bad):.0e}")
for name, x in (("tsqr", tsqr(*bad_shards)[0]), ("normal", normal(*bad_shards))):
    print(f"{name}: x is off by {abs(x - x_true).max():.0e}")

# %% [markdown]
# The Gram matrix has the *square* of A's condition. Where A costs 6 digits, it costs
# 12, and above 1e8 nothing is left. The package estimates the condition with a few
# steps, refines the answer once, warns, and refuses what is hopeless:

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
# | TSQR | 2 m n^2 / N + 4 n^3 | (n + 1)^2 per device, once | no |
#
# `normal` is the default: nearly all its work is one matrix product. CGLS wins where
# n^2 numbers are too many or A is too large for several n x n matrices (the next
# chapter); TSQR where A is ill-conditioned.
#
# On one CPU and 10,000 x 1,000, `numpy.linalg.lstsq` takes 3.2 times as long as
# `normal` on two contexts. That is the method, not the devices: it is an SVD. NumPy's
# own normal equations, `solve(A.T @ A, A.T @ b)`, use all cores, too, and take three
# quarters of the time of `normal` (`docs/peers.md` has both rows).

# %% [markdown]
# ## Where does the time go?
#
# The notes keep a profile of their run. Here is ours, of CGLS. Nearly all of it is
# `_products`, the two products with A and their all-reduce, where Python hands work to
# the devices and waits for it. With a matrix as small as this a good part of that is
# `to_devices`, which copies the direction p to them. `--profile` writes more.

# %%
with cProfile.Profile() as profile:
    solve(A, b, devices=two, method="cgls")
_ = pstats.Stats(profile).strip_dirs().sort_stats("cumulative").print_stats(8)

# %% [markdown]
# ## All methods, measured
#
# Now on 4,000 x 400, or with `--preset book` on the notes' 10,000 x 1,000: each method
# on one device and on two, in fresh processes, with figures and a table of results. The
# notes print an error of 28.81 where the optimum is 27.35.

# %%
if __name__ == "__main__":
    runs = chapter.measure("least_squares")

# %% [markdown]
# ## Summary
#
# - A sum over rows is a sum over devices: split the rows once, then all-reduce short
#   vectors.
# - Summed gradients make N devices compute what one computes, up to rounding. Averaged
#   answers do not, however long each device works alone.
# - CGLS needs the same all-reduce as gradient descent and far fewer of them. The normal
#   equations and TSQR need one.
# - Squaring A squares its condition. Ask for the condition before choosing.
#
# ## Exercises
#
# 1. **Independent against shared x.** Solve 4,000 x 400 by `method="averaging"` with
#    `num_epochs=40`, independent and not, and print `residual_norm` of the history
#    after 1, 5, 10, 20 and 40 epochs. *(You should find that the shared x is ahead per
#    epoch: 80.6 against 88.0 after one, 31.7 against 42.4 after five. Its epoch is the
#    work of two devices in a row, but on two cores 40 epochs of 10,000 x 1,000 take
#    1.66 s shared and 1.31 s independent: measure before you count steps. The
#    independent one stops lower (17.55 against 17.72; the optimum is 17.36), because it
#    averages two samples of rows.)*
# 2. **Leave out the all-reduce** in `gradient`. *(You should find that the replicas no
#    longer agree, and that each goes to the solution of its own half: 9.057 and 9.071
#    after 2,000 steps, on the way to the 9.059 and 9.075 printed above.)*
# 3. **Divide by the shard instead of the batch.** Write the step as a mean over rows:
#    `lr` is 1,000 / `largest`, and the sum of the gradients is divided by the 1,000
#    rows of A. Then divide by the 500 rows of a shard; then take the mean of the
#    devices' gradients and divide by 1,000. *(You should find the errors from above.
#    Then the step is 2 / `largest` and x swings to and fro: 18.21 after 100 steps and
#    after 2,000. With the mean every step is half as long: 8.9079 after 200 steps,
#    where the sum has it after 100.)*
# 4. **How large may the step be?** Try `lr` of 0.5, 1, 1.5, 1.9, 1.99 and 2.01 times 1
#    / `largest`, 200 steps each. *(You should find it better and better up to 1.9
#    (8.842), worse at 1.99 (9.10), and 117 at 2.01: beyond 2 it diverges.)*
# 5. **Digits.** Repeat "What squaring costs" with 1e-2, 1e-4, 1e-6 and 1e-8 in place of
#    1e-5. *(You should find errors of about 1e-13, 1e-11, 4e-9 and 1e-7 by `tsqr`, and
#    of 1e-10, 1e-6 and 1e-2 by `normal`. At 1e-8 `normal` finds no digit, or its
#    Cholesky factorisation fails, depending on the rounding.)*
# 6. **Count what is sent** until the error agrees with LAPACK's to six digits, for n =
#    50. *(You should find 765 numbers per device for CGLS (15 steps of 51), 2,550 for
#    `normal`, 2,601 for TSQR, and 100,000 for 2,000 steps of gradient descent. At n =
#    1,000, where CGLS takes 26 steps, it is 26 thousand against a million.)*
