# %% [markdown]
# # Timing devices honestly
#
# Source: the least-squares notes, the GPU wiki, the CryptoPunks notebook,
# the GPUSOROBAN posts
#
# Four sources time a CPU against a GPU; two stop the clock before the GPU has finished.
# Here is the same work on any devices, timed both ways, its results checked:
#
#     python chapters/timing.py --devices auto --num-devices 1,2
#     d2lpar run timing --preset book      (the published sizes: minutes per product)

# %%
import numpy

from d2lpar import allreduce, chapter, devices, np, timing
from d2lpar.studies import array_timings

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")

# %% [markdown]
# **Two clocks.** A call of MXNet, or of any GPU library, queues work and returns. A
# naive clock, read at that moment, measures Python. `timing.measure` waits for the work
# before both readings, leaves out a warm-up, and compares every result with NumPy's.

# %%
host = numpy.random.default_rng(0).random((1000, 1000), dtype="float32")
right = numpy.tan(host)


def tan(chosen: list) -> timing.Timing:
    rows = numpy.array_split(host, len(chosen))
    x = {d: np.array(part, ctx=d) for d, part in zip(chosen, rows)}
    return timing.measure(lambda d: np.tan(x[d]), chosen, expected=right, name="tan")


one, both = tan(two[:1]), tan(two)
numpys = timing.measure_host(lambda: numpy.tan(host), threads=1, name="NumPy's tan")
print(one, both, numpys, f"two / one: {timing.ratio(both, one):.2f}", sep="\n")

# %% [markdown]
# A wrong result has no time, and the times of different work have no ratio:

# %%
part = timing.measure_host(lambda: numpy.tan(host[:500]), threads=1, name="half of it")
for wrong in (
    lambda: timing.measure_host(lambda: host, 1, expected=right, name="no tan"),
    lambda: timing.ratio(part, one),
):
    try:
        wrong()
    except timing.TimingError as error:
        print(error)

# %% [markdown]
# **When does it pay?** (The notebook's "calculus of parallelization".) A second device
# saves work but costs copies and an all-reduce: a fixed time each, and one per byte.


# %%
def all_reduce(n: int) -> timing.Timing:
    ones = [np.ones(n, ctx=device) for device in two]
    data = [array.copy() for array in ones]

    def reduce(device):
        if device == two[0]:
            allreduce(data)
        return data[two.index(device)]

    again = lambda: [a.copyto(b) for a, b in zip(ones, data)]  # noqa: E731
    twos, name = numpy.full(2 * n, 2.0), f"all-reduce of {n:,}"
    return timing.measure(reduce, two, before=again, expected=twos, name=name)


saved = one.median - both.median
for cost in map(all_reduce, (1_000, 10_000_000)):
    pays = "pays" if saved > cost.median else "does not pay"
    print(f"saved {1e3 * saved:.2f} ms, {cost}: {pays}")

# %% [markdown]
# **The published numbers.** The least-squares notes: NumPy's 33.6 ms for 50,000,000
# floats x 2 are plausible, 400 MB at 12 GB/s. The T4's memory (320 GB/s) needs 1.25 ms,
# so 0.7 ms time only the launch. The CryptoPunks notebook: "28.6 to 68.8 %" less for a
# sum of 4 MB compares a CPU's sum with a launch. The GPU wiki: 4.12 s in float64 on one
# core, 738 ms in float32 on all, 18.9 ms on a T4. `%timeit` does not wait either, but
# its 1,000 loops fill the queue, so the mean is right: 12 passes over 400 MB need 15 ms
# (one kernel would need one pass). GPUSOROBAN: 297 s are 24 GFLOP/s, a CPU with few
# cores; 0.46 s are 15.9 TFLOP/s, synchronised; the first call, 0.55 s, is a warm-up.
#
# **All of them** in NumPy, PyTorch and MXNet: figures of both clocks, a roofline, and
# copies and all-reduces by size.

# %%
QUICK = {"x2": 20_000_000, "trig": 1_500, "product": 1_536, "largest_copy": 2**24}
DRY = {"x2": 1_000, "sum_rows": 100, "trig": 40, "product": 64, "largest_copy": 2**12}
PRESETS = {"quick": {"data": QUICK}, "book": {"product_repeats": 3}}
PRESETS["dry-run"] = {"repeats": 1, "data": DRY}

if __name__ == "__main__":
    chapter.measure("timing", array_timings.WORKLOAD, PRESETS)
