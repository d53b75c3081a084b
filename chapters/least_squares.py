# %% [markdown]
# # Data-parallel least squares
#
# Seed: the class LeastSquare and its script, in Korean (000)
#
# Find the x that makes ||A x - b|| least, the rows of A shared out over devices. The
# seed takes half of them to each of two "GPUs", lets each descend, and averages their x
# after each epoch. Here: that, its faults, and four faster ways to the optimum itself:
#
#     python chapters/least_squares.py --devices auto --num-devices 1,2
#     d2lpar run least_squares --preset book

# %%
import cProfile

import numpy

from d2lpar import chapter, devices
from d2lpar.least_squares import LeastSquare, solve
from d2lpar.runs.profile import cumulative_table

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")
rng = numpy.random.default_rng(0)
A, b = rng.random((1000, 50)), rng.random(1000)
best = numpy.linalg.lstsq(A, b, rcond=None)[0]
optimum = numpy.linalg.norm(A @ best - b)
print(f"LAPACK: ||A x - b|| = {optimum:.6f}")

# %% [markdown]
# **The seed's class**, as its script calls it. Averaging is cheap to communicate, one
# vector an epoch, but where it ends is not the optimum: each device descends towards
# the solution of *its* rows, and an average of solutions is not the solution.

# %%
lstsq = LeastSquare(A, b, epoches=5)
theta = lstsq.run()
print(f"averaging: {lstsq.check(theta):.6f}")

# %% [markdown]
# **Three faults of the seed's code.** `x = self.x_hat` copies nothing and `x -=` works
# in place: the second "GPU" starts where the first one ended, one after the other, and
# there is nothing parallel left (`independent=False` does the same). Both draw their
# row numbers from the length of the first half. And "GPU" is a loop in NumPy.

# %%
for independent in (False, True):
    found = solve(
        A, b, devices=two, method="averaging", num_epochs=5, independent=independent
    )
    print(f"independent={independent}: {found.residual_norm:.6f}")

# %% [markdown]
# **An all-reduce each step** makes N devices compute what one computes. Gradient
# descent needs many steps, conjugate gradients (CGLS) few.

# %%
for method in ("gradient", "cgls"):
    found = solve(A, b, devices=two, method=method)
    steps = found.history[-1].iteration
    print(f"{method}: {found.residual_norm:.6f} after {steps} steps")

# %% [markdown]
# **Directly**: sum one Gram matrix a device and factorise it (`normal`), or, where A is
# so ill-conditioned that squaring it loses all digits, stack one QR a device (`tsqr`).

# %%
for method in ("normal", "tsqr"):
    found = solve(A, b, devices=two, method=method)
    print(f"{method}: {found.residual_norm:.6f}, condition {found.condition:.1f}")

# %% [markdown]
# **Where the time goes**: in the calls that wait for the devices. `--profile` writes
# the whole table, and a trace of what each device did in the meantime.

# %%
with cProfile.Profile() as profile:
    solve(A, b, devices=two, method="cgls")
print("\n".join(cumulative_table(profile).splitlines()[:12]))

# %% [markdown]
# **All of them** on the seed's problem, 10,000 x 1,000, on 1, 2, ... devices: pictures,
# and `...-results.txt`, which says what the seed's text file said, of every method.

# %%
PRESETS = {
    "quick": {"num_epochs": 10, "data": {"rows": 4_000, "columns": 400}},
    "book": {"num_epochs": 40, "data": {"rows": 10_000, "columns": 1_000}},
    "dry-run": {"num_epochs": 1, "data": {"rows": 200, "columns": 20}},
}
METHODS = {
    "averaging": {"method": "averaging"},
    "averaging-as-the-seed": {"method": "averaging", "independent": False},
    "gradient": {"method": "gradient", "max_iterations": 500},
    **{method: {"method": method} for method in ("cgls", "normal", "tsqr")},
}

if __name__ == "__main__":
    plan = {"variants": METHODS, "one_thread_each": True}
    plan["load"] = "d2lpar.datasets.linear:uniform_problem"
    chapter.measure(
        "least_squares", "d2lpar.least_squares.solver:train", PRESETS, **plan
    )
