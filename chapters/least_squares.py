# %% [markdown]
# # Data-parallel least squares
#
# Source: the least-squares notes, class `LeastSquare` and its script
#
# Find the x that minimises ||A x - b||, with the rows of A shared out over devices. The
# notes let each of two "GPUs" descend on half of the rows and average their x after
# each epoch. Here are that method, its faults, and four faster ones:
#
#     python chapters/least_squares.py --devices auto --num-devices 1,2
#     d2lpar run least_squares --preset book

# %%
import cProfile

import numpy

from d2lpar import chapter, devices
from d2lpar.least_squares import WORKLOAD, LeastSquare, solve
from d2lpar.runs.profile import cumulative_table

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")
rng = numpy.random.default_rng(0)
A, b = rng.random((1000, 50)), rng.random(1000)
best = numpy.linalg.lstsq(A, b, rcond=None)[0]
optimum = numpy.linalg.norm(A @ best - b)
print(f"LAPACK: ||A x - b|| = {optimum:.6f}")

# %% [markdown]
# **The notes' class**, called as in their script. Averaging communicates little, one
# vector per epoch, but misses the optimum: each device descends towards the solution of
# *its* rows, and an average of solutions is not the solution.

# %%
lstsq = LeastSquare(A, b, epoches=5)
theta = lstsq.run()
print(f"averaging: {lstsq.check(theta):.6f}")

# %% [markdown]
# **Three faults of the notes' code.** First, `x = self.x_hat` copies nothing and `x -=`
# works in place, so the second "GPU" starts where the first one ended and nothing is
# parallel (`independent=False` reproduces this). Second, both halves draw row numbers
# up to the length of the first half. Third, a "GPU" is a loop in NumPy.

# %%
for independent in (False, True):
    found = solve(
        A, b, devices=two, method="averaging", num_epochs=5, independent=independent
    )
    print(f"independent={independent}: {found.residual_norm:.6f}")

# %% [markdown]
# **With an all-reduce in each step** N devices compute what one computes. Gradient
# descent needs many steps, conjugate gradients (CGLS) few.

# %%
for method in ("gradient", "cgls"):
    found = solve(A, b, devices=two, method=method)
    steps = found.history[-1].iteration
    print(f"{method}: {found.residual_norm:.6f} after {steps} steps")

# %% [markdown]
# **Direct methods** factorise the sum of one Gram matrix per device (`normal`) or, if A
# is so ill-conditioned that squaring it loses all digits, stack one QR each (`tsqr`).

# %%
for method in ("normal", "tsqr"):
    found = solve(A, b, devices=two, method=method)
    print(f"{method}: {found.residual_norm:.6f}, condition {found.condition:.1f}")

# %% [markdown]
# **Where does the time go?** Into waiting for the devices; `--profile` writes more.

# %%
with cProfile.Profile() as profile:
    solve(A, b, devices=two, method="cgls")
print("\n".join(cumulative_table(profile).splitlines()[:12]))

# %% [markdown]
# **All methods** on the notes' problem, 10,000 x 1,000: figures and `...-results.txt`.

# %%
PRESETS = {
    "quick": {"num_epochs": 10, "data": {"rows": 4_000, "columns": 400}},
    "book": {"num_epochs": 40, "data": {"rows": 10_000, "columns": 1_000}},
    "dry-run": {"num_epochs": 1, "data": {"rows": 200, "columns": 20}},
}
METHODS = {
    "averaging": {"method": "averaging"},
    "averaging-as-published": {"method": "averaging", "independent": False},
    "gradient": {"method": "gradient", "max_iterations": 500},
    **{method: {"method": method} for method in ("cgls", "normal", "tsqr")},
}

if __name__ == "__main__":
    chapter.measure(
        "least_squares", WORKLOAD, PRESETS, variants=METHODS, one_thread_each=True
    )
