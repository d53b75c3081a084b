# %% [markdown]
# # Timing devices honestly
#
# Seed: notes on PyCUDA (000), a GPU wiki (002), a GPU course (003), GPUSOROBAN (004)
#
# Four seeds time a CPU against a GPU, and two of them stop the clock before the GPU has
# finished. The same work here, on any devices, by both clocks, its results checked:
#
#     python chapters/timing.py --devices auto --num-devices 1,2
#     d2lpar run timing --preset book      (the seeds' sizes: minutes a product)

# %%
import numpy

from d2lpar import allreduce, chapter, devices, timing
from d2lpar._mxnet import np

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")

# %% [markdown]
# **Two clocks.** A call of MXNet, as of every GPU library, puts work into a queue and
# returns. A clock read then (naive) measures Python. `timing.measure` waits before both
# readings, leaves a warm-up out, and checks every result, against NumPy's.

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
# A wrong result has no time, and times of different work have no ratio:

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
# **When does it pay?** (003's "calculus of parallelization".) A second device saves
# work, and costs copies and an all-reduce: each a fixed time, and bytes by bandwidth.


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
# **The seeds' numbers.** 000: NumPy's 33.6 ms for 50,000,000 floats x 2 are honest, 400
# MB at 12 GB/s; the T4's memory (320 GB/s) needs 1.25 ms, so that 0.7 ms are a launch.
# 003: "28 to 69 %" less for a sum of 4 MB is a CPU's sum beside a launch, ten times.
# 002: 4.12 s are float64 on one core, 738 ms float32 on all, 18.9 ms a T4's. %timeit
# does not wait: it took the launch for the work and chose 1,000 loops, which filled the
# queue, so that it is right after all: 12 passes over 400 MB need 15 ms. A kernel: one.
# 004: 297 s are 24 GFLOP/s, a CPU with few cores; 0.46 s are 15.9 TFLOP/s, with the
# clock synchronised; its first call, 0.55 s, is the warm-up that we leave out.
#
# **All of them**, in NumPy, PyTorch and MXNet on 1, 2, ... devices: pictures of both
# clocks, a roofline, copies and all-reduces by size; all times in `...-results.txt`.

# %%
QUICK = {"x2": 20_000_000, "trig": 1_500, "product": 1_536, "largest_copy": 2**24}
DRY = {"x2": 1_000, "sum_rows": 100, "trig": 40, "product": 64, "largest_copy": 2**12}
PRESETS = {"quick": {"data": QUICK}, "book": {"product_repeats": 3}}
PRESETS["dry-run"] = {"repeats": 1, "data": DRY}

if __name__ == "__main__":
    load = "d2lpar.studies.array_work:Sizes"
    chapter.measure("timing", "d2lpar.studies.array_timings:train", PRESETS, load=load)
