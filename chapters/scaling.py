# %% [markdown]
# # When does a second device pay?
#
# In Chapter 1 two devices computed the same parameters as one, up to rounding. From
# which batch size on do they compute them *faster*?
#
# ![Speed of a step on two devices over one, by batch size, in Gluon and from scratch,
# on cores and on H200s](../figures/scaling/speedup.png)
#
# **In one sentence.** A second device pays where it saves more than Python and the
# all-reduce cost: in these records, in Gluon, a second core from a batch of 16 on and a
# second H200 from 256 on, compared with one in the same form of the program.
#
# *Dive into Deep Learning* (d2l) [1] timed this training with a batch of 256 images: an
# epoch took 1.8 s on one V100 GPU and **2.5 s on two**. In this chapter we explain with
# one inequality how a second GPU can slow training down, and test it on your machine
# and with records of one, two and four H200 GPUs.
#
# Run this chapter as a notebook, or as `python chapters/scaling.py --num-devices 1,2`.

# %%
import importlib.util
import runpy
import subprocess
import sys
import time
from pathlib import Path
from statistics import median, quantiles

import numpy
from matplotlib.figure import Figure

import d2lpar
from d2lpar import chapter, devices, gluon, init_lenet, np, npx
from d2lpar.errors import RecordError
from d2lpar.parallel import allreduce, get_params, train_batch
from d2lpar.records.kinds import ArmSample, StepRecord
from d2lpar.scaling.model import break_even, studies
from d2lpar.scaling.trace import draw, trace_steps

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")
of_cores, of_h200s = (
    studies([chapter.record(f"{place}scaling/book-1thread-concise-{kind}2.jsonl")])[0]
    for place, kind in (("", "cpu"), ("h200/", "gpu"))
)
for study, batch in ((of_cores, 16), (of_h200s, 256)):  # the sentence above
    speedups = {b: study.steps[1, b] / study.steps[2, b] for b in study.batches}
    assert speedups[batch] > 1 > speedups[batch // 2]

# %% [markdown]
# ## A lower and an upper bound
#
# ![Timelines of three training steps, on one device and on two, with a small and with a
# large batch](../docs/drawings/step-costs.svg)
#
# While the devices compute, Python issues the next operations. In the upper half of the
# drawing, with a small batch, Python takes longer, and it needs twice the time for two
# devices. In the lower half, with a large batch, the devices take longer, and two of
# them share the images.
#
# We write `one(b)` for the time of a step on a *single* device with b images. On N
# devices, with B images in all, the parts of a step take the following times:
#
# | part of a step | one device | N devices |
# |---|---|---|
# | Python issues the operators | `python` | `N * python` |
# | the devices run the forward and backward pass | `one(B)` | `one(B / N)` |
# | the gradients are summed | 0 | `all_reduce` |
#
# MXNet calls are asynchronous (Chapter 4), so Python can issue operators while the
# devices compute. At best the two overlap completely, and the slower one determines the
# time. At worst they take turns, and the all-reduce is added:
#
#     max(N * python, one(B / N))  <=  step  <=  N * python + one(B / N) + all_reduce
#
# Austin et al. [2] bound computation and communication in the same way. We call the
# range a *bracket*. Note that `one(b)` is the time of a whole step and contains
# `python`, so the upper end can only be too large.
#
# The first row is a claim: one Python thread needs twice as long for two devices. A
# record of two H200s has the times that Python needed to issue a step.
#
# *Predict before you run*: how many times as long as for one GPU does Python need to
# issue a step for two, in the median over the batch sizes?

# %%
chapter.predict("times Python's time for two GPUs", None)  # a number for None


def issue_seconds(study, n, batch):
    return median(s for r in study.records[n, batch] for s in r.issue_seconds)


ratios = [
    issue_seconds(of_h200s, 2, batch) / issue_seconds(of_h200s, 1, batch)
    for batch in of_h200s.batches
]
print(f"commit {of_h200s.runs[0].header.git_commit[:7]}, {len(ratios)} batch sizes:")
print(f"{min(ratios):.1f} to {max(ratios):.1f} times as long for two GPUs")
assert 1.5 < min(ratios) < median(ratios) < 2.2
chapter.answer("times Python's time for two GPUs", round(median(ratios), 1))

# %% [markdown]
# Two GPUs have twice as many operators to issue, so we expect about 2. The ratio varies
# with the batch, so `N * python` is an estimate.
#
# ## Inside one step
#
# MXNet's profiler notes when each operator begins and ends, and on which device. We
# also read the clock when Python begins to issue a step and when it has finished. Let
# us trace one step with a small batch and one with a large batch. The device whose
# gradients are ready last is the *straggler* of the step, because the sum has to wait
# for it.

# %%
traced = trace_steps(two, (16, 512))
for step in traced:
    share = step.busy["Python"] / step.milliseconds
    print(
        f"{step.batch_size} images: {step.milliseconds:.1f} ms, Python busy for", end=""
    )
    print(f" {share:.0%};\n    device {step.straggler} has its gradients", end="")
    print(f" {step.waiting:.1f} ms after the other")
chapter.show(draw(traced), "one-step")

# %% [markdown]
# With 16 images, expect gaps between the operators of a device, in which it waits for
# Python or for the other device. With 512 images, expect Python's bar to end early:
# everything has been issued, and the devices compute side by side. Profiling slows
# execution down, so read the picture for the order of things and not for their times.
# The cell has also written the two steps to `runs/one-step-trace.json`, which trace
# viewers such as <https://ui.perfetto.dev> can open.
#
# ## One device and two
#
# To compute the bracket of two devices we measure one device with half of the batch.
# The function returns the median time of a step, and of Python to issue one. It waits
# for the devices after a series of steps or, like d2l's loop, after every step.


# %%
def time_step(chosen, batch_size, wait=False, steps=4, series=1, **how):
    X = np.random.uniform(size=(batch_size, 1, 28, 28), ctx=chosen[0])
    y = np.arange(batch_size, ctx=chosen[0]) % 10
    device_params = [get_params(init_lenet(), device) for device in chosen]
    seconds, python = [], []
    for _ in range(series + 1):
        npx.waitall()
        start, issuing = time.perf_counter(), 0.0
        for _ in range(steps):
            begin = time.perf_counter()
            train_batch(X, y, device_params, chosen, lr=1e-3, **how)
            issuing += time.perf_counter() - begin
            if wait:
                npx.waitall()
        npx.waitall()
        seconds.append((time.perf_counter() - start) / steps)
        python.append(issuing / steps)
    return median(seconds[1:]), median(python[1:])  # the first series warms up


def time_all_reduce(repeats=15):
    """Seconds to sum arrays of the shapes of LeNet's gradients over two devices."""
    replicas = [get_params(init_lenet(), device) for device in two]
    seconds = []
    for _ in range(repeats):
        npx.waitall()
        start = time.perf_counter()
        for arrays in zip(*replicas):
            allreduce(list(arrays))
        npx.waitall()
        seconds.append(time.perf_counter() - start)
    return median(seconds)


def bracket(python, device, all_reduce):
    """The bounds of a step on two devices; `python` issues a step on one."""
    return max(2 * python, device), 2 * python + device + all_reduce


sizes = [2, 4, 8, 16, 32, 64, 128]
found = {(n, batch): [] for batch in sizes for n in (1, 2)}
for _ in range(5):  # in turn, because the speed of a machine drifts
    for n, batch in found:
        found[n, batch].append(time_step(two[:n], batch))
steps, issue = ({k: median(t[i] for t in found[k]) for k in found} for i in (0, 1))
all_reduce = time_all_reduce()

print("batch   one ms   two ms  speedup  bracket of two, n = 5")
speedups, inside = {}, 0
for half, batch in zip(sizes, sizes[1:]):
    low, high = bracket(issue[1, half], steps[1, half], all_reduce)
    one, both = steps[1, batch], steps[2, batch]
    speedups[batch] = one / both
    inside += low <= both <= high
    print(f"{batch:5} {1e3 * one:8.1f} {1e3 * both:8.1f} {one / both:8.2f}", end="")
    print(f" {1e3 * low:8.1f}, {1e3 * high:5.1f}")
print(f"{inside} of {len(speedups)} steps lie in their bracket")
equal = break_even(speedups)
print("break-even:", "above 128 images" if equal is None else f"{equal:.0f} images")

# %% [markdown]
# The *speedup* is the time on one device divided by the time on two, so two devices pay
# if it exceeds 1. The *break-even* is the batch size at which it reaches 1,
# interpolated between the rows. The bracket assumes that the devices share nothing, but
# two CPU contexts share a processor's caches and memory, and their steps can lie above
# it, as in [our record of two idle cores](../figures/scaling.md).
#
# These steps sum eight arrays; the trainings of the package sum *one*, so expect
# another break-even from the last cell. What does the sum cost inside a step? We remove
# it, and compare by Chapter 1's rule. In the same way we test two further suspects of
# d2l's loop: it waits after every step, and it reads its images through a data loader.


# %%
def verdict(one, other):
    """What the second of two lists of times is, if their quartiles do not overlap."""
    (low, middle, high), (low_of_other, of_other, high_of_other) = (
        quantiles(seconds, n=4) for seconds in (one, other)
    )
    if low_of_other <= high and low <= high_of_other:
        return "no difference: the quartiles overlap"
    return f"{1e3 * (of_other - middle):+.2f} ms"


BATCH = 16
forms = {
    "as it is": {},
    "without the sum": {"reduce": lambda device_params: None},
    "waiting after every step": {"wait": True},
}
times = {(n, form): [] for n in (1, 2) for form in forms}
del times[1, "without the sum"]  # one device has none
for _ in range(5):  # in turn
    for n, form in times:
        times[n, form].append(time_step(two[:n], BATCH, series=2, **forms[form])[0])
for n, form in times:
    found = times[n, form]
    print(f"{n} device(s), {form:24}: {1e3 * median(found):6.2f} ms, ", end="")
    print(verdict(times[n, "as it is"], found) if form != "as it is" else "")

images, labels, *_ = d2lpar.datasets.fashion_sample()
pairs = gluon.data.ArrayDataset(np.array(images[..., None], dtype="uint8"), labels)
to_tensor = gluon.data.vision.transforms.ToTensor()
loader = gluon.data.DataLoader(pairs.transform_first(to_tensor), BATCH, shuffle=True)
start = time.perf_counter()
batches = sum(1 for _ in loader)
per_batch = (time.perf_counter() - start) / batches
print(f"the data loader alone, in one process: {1e3 * per_batch:.2f} ms per batch")

# %% [markdown]
# "No difference" means that the cost of the sum, or of the wait, is below the noise of
# this machine. An epoch cannot be shorter than its data loader alone; but the loader
# needs the same time for one device and for two, so it alone cannot explain what a
# second device *adds*. The package's trainings keep all images on the devices.
#
# ## From the bracket to a decision
#
# If the bracket holds, two devices **cannot** pay where even its lower end is above the
# time of one device, and they are **certain** to pay where even its upper end is below:
#
#     cannot pay:      max(N * python, one(B / N)) >= one(B)
#     certain to pay:  N * python + one(B / N) + all_reduce < one(B)
#
# We check both with steps on H200s, of Chapter 5's network
# ([record](../figures/h200/scaling/book-1thread-concise-gpu2.jsonl)) and of Chapter 1's
# ([record](../figures/h200/scaling/book-1thread-scratch-gpu2.jsonl)), without CUDA
# graphs.
#
# *Predict before you run*: how many of the verdicts "cannot pay" and "certain to pay"
# do the measured times contradict?

# %%
chapter.predict("verdicts contradicted", None)
path = "h200/scaling/book-1thread-scratch-gpu2.jsonl"
(scratch,) = studies([chapter.record(path)])
contradicted = []
for study in (of_h200s, scratch):
    assert not study.runs[0].header.gpu_build["cuda_graphs"]
    print(f"{study.name}\nbatch   one ms   bracket of two   two ms")
    places = []
    for batch, (low, high) in study.bracket(2).items():
        if batch not in study.batches:
            continue
        one, both = study.steps[1, batch], study.steps[2, batch]
        said = "cannot pay" if low >= one else "certain" if high < one else "open"
        wrong = said == ("certain" if both > one else "cannot pay")
        places.append("below" if both < low else "above" if both > high else "inside")
        contradicted += [said] * wrong
        print(f"{batch:5} {1e3 * one:8.2f} {1e3 * low:8.2f}, {1e3 * high:5.2f}", end="")
        print(f" {1e3 * both:8.2f}  {said}{', contradicted' * wrong}")
    found = [f"{places.count(p)} {p}" for p in ("below", "inside", "above")]
    print(f"the times of two lie {', '.join(found)} their bracket")
chapter.answer("verdicts contradicted", len(contradicted))
assert contradicted == ["cannot pay"]
assert places.count("below") > len(places) / 2 and "above" not in places

# %% [markdown]
# Apart from the all-reduce, the verdicts use measurements on one GPU only. In Gluon no
# time contradicts them. From scratch most times lie *below* their bracket: two GPUs
# took less than twice Python's time on one. So the ends are *estimates*, and one time
# contradicts "cannot pay".
#
# The conditions also tell us how to make a second device pay with a smaller batch:
# compile the network (Chapter 5), hide the all-reduce behind the backward pass (Chapter
# 7), train a larger network, or remove the factor N from `N * python`.
#
# ## The second H200, in equal forms
#
# A CUDA graph removes most of `python`: the driver replays a whole pass that it has
# recorded. If one GPU runs with a graph and two without, the comparison is unfair. The
# table has the milliseconds of a step of 256 images in each form, and below them the
# programs of others.
#
# *Predict before you run*: d2l's second V100 added `0.7 s / 235 = 3 ms` to each step.
# How many milliseconds does the second H200 add in d2l's own loop?

# %%
chapter.predict("ms that the second H200 adds", None)
graph = of_h200s.runs[0].header.gpu_build["cuda_graphs"]
forms = {(n, graph): 1e3 * of_h200s.steps[n, 256] for n in (1, 2)}
for folder, n in (("", 1), ("", 2), ("no_graph/", 1), ("no_graph/", 2)):
    try:
        run = chapter.record(f"h200/{folder}multiple_gpus_concise/book-gpu{n}.jsonl")
    except RecordError:
        continue  # to be measured
    milliseconds = 1e3 * median(epoch.seconds for epoch in run.epochs[1:]) / 235
    forms.setdefault((n, run.header.gpu_build["cuda_graphs"]), milliseconds)

loops, commits = {}, {}
for name in ("peers", "peers_d2l"):
    record = chapter.record(f"h200/{name}/custom-gpu2.jsonl")
    for sample in record.lines_of(ArmSample):
        who, _, devices_of_it = sample.arm.rpartition(", ")
        if not sample.warm_up and (name == "peers_d2l") == who.startswith("d2l's"):
            commits[who] = record.header.git_commit[:7]
            of_who = loops.setdefault((who, int(devices_of_it[0])), [])
            of_who.append(1e3 * sample.seconds / 235)
rows = {("Gluon, no graph", n): forms.get((n, False)) for n in (1, 2)}
rows |= {("Gluon, CUDA graph", n): forms.get((n, True)) for n in (1, 2)}
rows |= {key: median(loops[key]) for key in loops if key[0] != "d2lpar concise"}

print(f"{'ms per step, 256 images':26} one H200   two H200s")
for name in dict.fromkeys(name for name, _ in rows):
    one, both = (rows.get((name, n)) for n in (1, 2))
    commit = commits.get(name, of_h200s.runs[0].header.git_commit[:7])
    print(f"{name:26} {one:8.2f}", end=" ")
    if both:
        print(f"{both:11.2f}  {both / one:4.2f} times as long, commit {commit}")
    else:
        print("             one only" if name in commits else "  to be measured")
print(f"fastest: one {min(rows[key] for key in rows if key[1] == 1):.2f} ms, ", end="")
print(f"two {min(t for (_, n), t in rows.items() if n == 2 and t):.2f} ms")
added = rows["d2l's notebook loop", 2] - rows["d2l's notebook loop", 1]
chapter.answer("ms that the second H200 adds", round(added, 1))
for who in ("d2lpar from scratch", "d2l's notebook loop", "d2l's PyTorch tab"):
    assert min(loops[who, 2]) > max(loops[who, 1])
stems = ["book", *(f"book-seed{seed}" for seed in range(1, 5))]
for n in (1, 2):
    paths = [f"h200/seeds/multiple_gpus/{stem}-gpu{n}.jsonl" for stem in stems]
    found = [[e.seconds for e in chapter.record(path).epochs[1:]] for path in paths]
    steps_of_n = [1e3 * median(seconds) / 235 for seconds in found]
    print(f"from scratch, 5 seeds, {n} H200(s): ", end="")
    print(f"{min(steps_of_n):.2f} to {max(steps_of_n):.2f} ms")

# %% [markdown]
# Compare two GPUs with one in the same row, and then each with the fastest form of the
# other. A graph takes Python's time out of `one(B)`, too. So it can move the break-even
# *up*, if only one GPU has it. Here it is not the only difference: the row with a graph
# is a training, and from 256 images per GPU on that form computes biases as weights;
# the row without are steps of the study. This command measures both counts
# with a graph, and with `MXNET_ENABLE_CUDA_GRAPHS=0` before it and
# `--out=figures/h200/no_graph` both without:
#
#     d2lpar run multiple_gpus_concise --devices=gpu:2 --num-devices=1,2 \
#         --preset=book --data=fashion-mnist --out=figures/h200
#
# From scratch the times vary from training to training (the last lines). In three of
# the programs that issue every operator from one Python thread, ours from scratch and
# both of d2l, the second GPU costs time, as the assertion confirms. d2l's
# PyTorch tab is slower on two H200s as well, so the slowdown does not need MXNet. Does
# it need the wait after every step? A reader's loop with our functions was timed with
# and without it.

# %%
waits, record = {}, chapter.record("h200/benchmarks/own_loop.jsonl")
for sample in record.lines_of(ArmSample):
    if not sample.warm_up:
        key = sample.arm, sample.work
        waits.setdefault(key, []).append(1e3 * sample.seconds)
for arm in ("d2lpar's functions", "d2lpar's, no waiting"):
    one, both = (median(waits[arm, work]) for work in ("1 GPU", "2 GPUs"))
    print(f"{arm:20}: {one:.2f} ms on one H200, {both:.2f} ms on two")
    assert both > 1.3 * one
print(f"n = {len(waits[arm, '1 GPU'])}, commit {record.header.git_commit[:7]}")

# %% [markdown]
# Without the wait all steps are shorter, but the second GPU still costs time. How much
# of d2l's 3 ms on V100s the same causes explain we cannot say, because nobody has
# recorded Python's time on that host.
#
# ## One process per device
#
# PyTorch's DistributedDataParallel (DDP) starts one process per GPU. Each process
# issues the work of its own GPU only, which removes the factor N from `N * python`. Let
# us run it, with two processes on the cores of this machine, and compare its losses
# with those of our functions on the same batches.

# %%
folder = Path(d2lpar.__file__).resolve().parents[1] / "teaching" / "frameworks"
start = runpy.run_path(str(folder / "start.py"))
device_params = [
    get_params([np.array(p) for p in start["params"]()], device) for device in two
]
ours = []
for X, y in start["batches"]():
    losses = train_batch(np.array(X), np.array(y), device_params, two, lr=start["LR"])
    ours.append(sum(float(shard.sum()) for shard in losses) / len(y))
print("our functions:", *[f"{value:.5f}" for value in ours])
if importlib.util.find_spec("torch"):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    printed = subprocess.run(
        [*torchrun, "pytorch_ddp.py"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    ).stdout
    theirs = [float(line) for line in printed.split()]
    print("DDP:          ", *[f"{value:.5f}" for value in theirs])
    assert numpy.allclose(ours, theirs, rtol=1e-4)
else:
    print("DDP: PyTorch is not installed here; the committed notebook has its output")

# %% [markdown]
# If the GPUs are equally fast, N GPUs with a batch of B take as long as one GPU with a
# batch of B / N, plus at most the all-reduce. We check this with a record of LeNet on
# one, two and four H200s ([records](../figures/gpu_scaling/book-ddp-gpu4.jsonl)).
#
# *Predict before you run*: how many times as fast as one H200 are four with a batch of
# 8,192?

# %%
chapter.predict("speedup of four H200s, batch 8,192", None)
ddp, figure = {}, Figure(figsize=(7, 4), layout="constrained")
axes = figure.subplots()
for n, marker in zip((1, 2, 4), "os^"):
    record = chapter.record(f"gpu_scaling/book-ddp-gpu{n}.jsonl")
    lines = record.lines_of(StepRecord)
    times = {line.global_batch_size: 1e3 * median(line.seconds) for line in lines}
    ddp.update({(n, batch): ms for batch, ms in times.items()})
    axes.loglog([b / n for b in times], times.values(), f"{marker}-", label=n)
axes.set(xlabel="images per GPU", ylabel="milliseconds per step of PyTorch DDP")
axes.set_yticks([2, 5, 10], ["2", "5", "10"])
axes.minorticks_off()
axes.legend(title="GPUs")
chapter.show(figure, "ddp")
version, commit = record.header.versions["d2lpar"], record.header.git_commit[:7]
tf32 = record.header.gpu_build.get("tf32", "not named")
print(f"record of d2lpar {version}, commit {commit}, TF32 {tf32}")
small = [ms for (n, batch), ms in ddp.items() if n == 1 and batch <= 1024]
print(f"one GPU: {min(small):.2f} to {max(small):.2f} ms with 32 to 1,024 images")
for n in (2, 4):
    ratios = [
        ms / ddp[1, b // n]
        for (k, b), ms in ddp.items()
        if k == n and (1, b // n) in ddp
    ]
    print(f"{n} GPUs: {min(ratios):.2f} to {max(ratios):.2f} times as long as ", end="")
    print("one GPU with as many images per GPU")
for batch in (256, 8192):
    print(f"four GPUs, batch {batch:,}: speedup {ddp[1, batch] / ddp[4, batch]:.2f}")
speedup = round(ddp[1, 8192] / ddp[4, 8192], 2)
chapter.answer("speedup of four H200s, batch 8,192", speedup)
chapter.score()
assert max(small) < 1.2 * min(small) and max(ratios) < 1.4

# %% [markdown]
# If the time of a step depended on the images per GPU alone, the three curves would
# coincide. On the left the time does not grow with the number of images, so it is not
# spent on arithmetic, and more GPUs cannot reduce it. On the right it grows with the
# images per GPU, and more GPUs do reduce it.
#
# The [appendix](../docs/appendix.md#amdahls-and-gustafsons-laws) has *weak scaling*, in
# which the batch grows with the number of devices, and Amdahl's and Gustafson's laws.
#
# ## Your devices
#
# Finally, we time the steps of the package's trainings of Chapters 1 and 5. One context
# has one thread here, as in the cells above.

# %%
if __name__ == "__main__":
    runs = chapter.measure("scaling")

# %% [markdown]
# In the picture of a step's time the band is the bracket of several devices. The bars
# divide a step into its parts: we run steps that end before a part and steps that end
# after it, in turn, and subtract. The last picture compares ways to compute the same
# all-reduce, as [NCCL's bus bandwidth](../docs/players.md).
#
# ## Summary
#
# > **Takeaway.** If devices share neither cores nor memory bandwidth, a step takes from
# > about `max(N * python, one(B / N))` to `N * python + one(B / N) + all_reduce`. N
# > devices hardly pay while the lower end is above `one(B)`, and pay once the upper end
# > is below it. With one process per device, omit `N *`.
#
# ## Exercises
#
# 1. Double the channels of both convolutions, to 40 and 100. How does each part of a
#    step change? *(There are `8.55 / 2.25 = 3.8` times as many multiplications, since
#    the second convolution has four times as many, but the same number of operators.
#    The gradients grow from 129,068 to 306,718 numbers. So `python` stays, and if
#    `one(B)` follows the multiplications, a second device pays with smaller batches.)*
# 2. *On paper.* A step of b images takes `1.2 + 0.004 b` ms on one GPU and `2.4 + 0.002
#    b` on two. From which batch on do two pay? A CUDA graph, which runs on one GPU
#    only, lowers 1.2 to 0.4; and now? *(Two cost 1.2 ms more and save 0.002 ms per
#    image: 600 images. With the graph they cost 2 ms more: 1,000 images. The faster
#    form of one GPU moves the break-even up.)*
# 3. *On paper.* Strong scaling from one device to eight reduces a step from 80 ms to 16
#    ms. What are the speedup and the *parallel efficiency*, speedup / N? Which share s
#    does Amdahl's law imply? *(`80 / 16 = 5` and `5 / 8 = 63 %`. If f ms are not
#    reduced, `16 = f + (80 - f) / 8`, so `f = 48 / 7 = 6.9` ms and `s = 6.9 / 80 =
#    8.6 %`.)*
# 4. *On paper.* Device 1 needs twice as long per image as device 0. What is the speedup
#    over device 0 alone with equal shards, and with the best split? Neglect Python and
#    the all-reduce. *(With equal shards device 1 takes as long as device 0 alone for
#    the whole batch, a speedup of 1. With two thirds of the batch on device 0 both take
#    `2 / 3` of the time, a speedup of `3 / 2`.)*
# 5. *On paper.* GPUs cost 3 dollars per hour each. A training takes 8 hours on one GPU,
#    5 on two and 4 on four. How many do you rent? *(24, 30 and 48 dollars: one, unless
#    an hour of waiting is worth more than `6 / 3 = 2` dollars, then two; and four from
#    `18 / 1 = 18` dollars per hour on.)*
#
# **Puzzles.** `python -m d2lpar.puzzles` has one about the best overlap of the backward
# pass and the sums of the gradients: `overlap`.
#
# ## Sources
#
# - [1] Zhang et al., *Dive into Deep Learning*, "Training on Multiple GPUs",
#   <https://d2l.ai/chapter_computational-performance/multiple-gpus.html>
# - [2] Austin et al., *How to Scale Your Model*,
#   <https://jax-ml.github.io/scaling-book/>
