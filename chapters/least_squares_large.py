# %% [markdown]
# # Least squares larger than memory
#
# Seed: the class LeastSquare with A 100 times larger, in Korean (000)
#
# The seed's second run: 100,000 x 10,000, 8 GB of numbers. They are written to a file
# in blocks, and solved in blocks: each device reads a block of its rows while it works
# on the last one, so that the memory needed does not depend on the number of rows.
#
#     python chapters/least_squares_large.py --devices auto --num-devices 1,2
#     d2lpar run least_squares_large --preset book     (8 GB in TMPDIR, some minutes)

# %%
import numpy

from d2lpar import chapter, datasets, devices
from d2lpar.least_squares import solve

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")
problem = datasets.uniform_file(rows=5_000, columns=50)
print(type(problem.A).__name__, problem.A.shape, problem.A.filename)

# %% [markdown]
# **Blocks.** `resident_bytes=0` keeps no block on the devices: the file is read again
# for every pass, as it must be where it does not fit. The answer is the same.

# %%
in_blocks = solve(
    problem.A,
    problem.b,
    devices=two,
    method="cgls",
    resident_bytes=0,
    block_bytes=2**18,
)
at_once = solve(numpy.array(problem.A), problem.b, devices=two, method="cgls")
print(f"in blocks {in_blocks.residual_norm:.9f}, at once {at_once.residual_norm:.9f}")

# %% [markdown]
# **Which method?** One matrix (n, n) is 0.8 GB for n = 10,000, and where rows come in
# blocks `normal` was measured (n = 3,000) to need 2.5 of them on one context and 4.6 on
# two, `tsqr` 11 and 14: 2.0, 3.7, 9 and 11 GB. Both pass over the file once, but with
# thousands of times the operations of one pass of `cgls`, which passes over it some 20
# times and keeps blocks and vectors only, 0.9 GB in all: here it is the one that fits.
# On two contexts within 3 GB `normal` is for n up to 8,000, `tsqr` for 4,500.

# %%
PRESETS = {
    "quick": {"num_epochs": 1, "data": {"rows": 20_000, "columns": 400}},
    "book": {"num_epochs": 1, "data": {"rows": 100_000, "columns": 10_000}},
    "dry-run": {"num_epochs": 1, "data": {"rows": 200, "columns": 20}},
}
METHODS = {"cgls": {"method": "cgls", "resident_bytes": 0}}

if __name__ == "__main__":
    chapter.measure(
        "least_squares_large",
        "d2lpar.least_squares.solver:train",
        PRESETS,
        load="d2lpar.datasets.linear:uniform_file",
        variants=METHODS,
        one_thread_each=True,
    )
