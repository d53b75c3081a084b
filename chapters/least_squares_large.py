# %% [markdown]
# # Least squares larger than memory
#
# Source: the least-squares notes, the run with 100 times as much data
#
# The second run of the notes has A of 100,000 x 10,000: 8 GB of numbers. They are
# written to a file and solved in blocks: each device reads a block of its rows while it
# works on the previous one, so the memory needed does not depend on the number of rows.
#
#     python chapters/least_squares_large.py --devices auto --num-devices 1,2
#     d2lpar run least_squares_large --preset book     (8 GB in TMPDIR, some minutes)

# %%
import numpy

from d2lpar import chapter, datasets, devices
from d2lpar.least_squares import WORKLOAD_ON_DISK, solve

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")
problem = datasets.uniform_file(rows=5_000, columns=50)
print(type(problem.A).__name__, problem.A.shape, problem.A.filename)

# %% [markdown]
# **Blocks.** `resident_bytes=0` keeps no block on the devices: each pass reads the file
# again, as it must when A does not fit into memory. The answer is the same.

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
# **Which method?** A matrix of (n, n) takes 0.8 GB for n = 10,000. With rows in blocks
# (measured for n = 3,000) `normal` needs 2.5 such matrices on one context, 4.6 on two,
# `tsqr` 11 and 14: that is 2.0, 3.7, 9 and 11 GB. Both pass over the file once, with
# thousands of times the operations of a pass of `cgls`, which makes some 20 passes and
# keeps only blocks and vectors, 0.9 GB in all: here it is the one that fits. Within 3
# GB, two contexts can use `normal` for n up to 8,000 and `tsqr` up to 4,500.

# %%
PRESETS = {
    "quick": {"data": {"rows": 20_000, "columns": 400}},
    "book": {"data": {"rows": 100_000, "columns": 10_000}},
    "dry-run": {"data": {"rows": 200, "columns": 20}},
}
METHODS = {"cgls": {"method": "cgls", "resident_bytes": 0}}

if __name__ == "__main__":
    chapter.measure(
        "least_squares_large",
        WORKLOAD_ON_DISK,
        PRESETS,
        variants=METHODS,
        one_thread_each=True,
    )
