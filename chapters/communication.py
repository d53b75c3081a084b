# %% [markdown]
# # Talk less, later, or in pieces
#
# Sources: Li et al. 2020, "PyTorch Distributed" (buckets),
# <https://arxiv.org/abs/2006.15704>; Rajbhandari et al. 2020, "ZeRO",
# <https://arxiv.org/abs/1910.02054>; Stich 2019, "Local SGD Converges Fast and
# Communicates Little", <https://arxiv.org/abs/1805.09767>; Douillard et al. 2023,
# "DiLoCo", <https://arxiv.org/abs/2311.08105>
#
# **What you will learn.** Data parallelism sends every gradient in every step, and
# chapter 6 shows what that costs. There are three ways to pay less:
#
# - *later*: send the gradients of the last layers while those of the first are still
#   being computed;
# - *in pieces*: each device keeps a part of the optimizer's memory and updates a part
#   of the parameters, for the same bytes;
# - *less*: average the parameters only after several steps, which is another training.
#
# Run this chapter as a notebook, or as a program:
#
#     python chapters/communication.py --devices auto
#     d2lpar run communication --preset book

# %%
import json
import time
from functools import partial
from pathlib import Path
from statistics import median

import numpy
from matplotlib.figure import Figure

from d2lpar import (
    allreduce,
    autograd,
    chapter,
    devices,
    evaluate_accuracy,
    fashion_sample,
    get_params,
    gluon,
    init_lenet,
    mx,
    np,
    npx,
    split_batch,
    train_batch,
)

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")
mx.profiler.set_config(profile_all=True, filename="steps.json")  # once per process

# %% [markdown]
# ## Later: communicate while computing
#
# The backward pass begins with the last layer. When its gradient is ready, the devices
# could sum it at once, while they compute those of the other layers. Does Gluon's
# `Trainer` do that? In Python it cannot: `trainer.step` comes after `backward`. But
# MXNet runs an operation as soon as its inputs are ready, whatever Python does
# meanwhile (chapter 4), and its
# [design notes](https://mxnet.apache.org/versions/1.9.1/api/architecture/note_engine)
# name this overlap as a purpose of the engine.
#
# MXNet's profiler can decide. It writes down when each operation begins and ends.
# `KVStoreReduce` is the Trainer's sum of one array over the devices.
#
# One setting matters. MXNet hands operators to a device in groups of up to 15, in order
# to save time per operator, and the results of a group are ready together.
# `backward_bulk_size` is the largest group in the backward pass. Static memory, as in
# chapter 5, has groups of its own.
#
# *Predict before you run*: LeNet has eight arrays of parameters. How many of the eight
# sums begin before the backward pass ends, in groups of 15 operators? And if each
# operator is handed over alone?


# %%
def lenet_in_gluon():
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(20, kernel_size=3, activation="relu", in_channels=1),
        gluon.nn.AvgPool2D(pool_size=2, strides=2),
        gluon.nn.Conv2D(50, kernel_size=5, activation="relu", in_channels=20),
        gluon.nn.AvgPool2D(pool_size=2, strides=2),
        gluon.nn.Dense(128, activation="relu", in_units=800),
        gluon.nn.Dense(10, in_units=128),
    )
    return net


def profiled_steps(nets, batch_size=128):
    """The operations of one step of each network: [(begin, end, name), ...] in ms."""
    X, y = np.random.uniform(size=(batch_size, 1, 28, 28)), np.arange(batch_size) % 10
    X_shards, y_shards = split_batch(X, y, two)
    loss, marks = gluon.loss.SoftmaxCrossEntropyLoss(), []
    for net in nets:
        trainer = gluon.Trainer(
            net.collect_params(),
            "sgd",
            {"learning_rate": 0.01},
            kvstore="local",
            update_on_kvstore=False,
        )
        for state in ("stop", "stop", "run"):  # the first two steps warm up
            npx.waitall()
            mx.profiler.set_state(state)
            marks.append(1e3 * time.time())
            with autograd.record():
                losses = [loss(net(X_k), y_k) for X_k, y_k in zip(X_shards, y_shards)]
            for l in losses:
                l.backward()
            trainer.step(batch_size)
        npx.waitall()
        mx.profiler.set_state("stop")
    mx.profiler.dump(finished=False)
    trace = json.loads(Path("steps.json").read_text() + "]}")  # more may come
    begun, operations = {}, []
    for event in trace["traceEvents"]:
        key = event.get("pid"), event.get("tid"), event["name"]
        if event["ph"] == "B":
            begun[key] = event["ts"] / 1e3
        elif event["ph"] == "E" and key in begun:
            operations.append((begun.pop(key), event["ts"] / 1e3, event["name"]))
    recorded = zip(marks[2::3], [*marks[3::3], 1e3 * time.time()])
    return [[o for o in operations if a <= o[0] < b] for a, b in recorded]


def sums_and_end(operations):
    """When each sum begins, and when the backward pass ends, after its beginning."""
    backward = [o for o in operations if o[2].startswith(("_backward", "ImperativeB"))]
    start = min(begin for begin, _, _ in backward)
    sums = sorted(begin - start for begin, _, name in operations if name == SUM)
    return sums, max(end for _, end, _ in backward) - start


chapter.predict("early sums in groups of 15", None)  # write your number for None
chapter.predict("early sums one by one", None)
SUM, nets = "KVStoreReduce", []
forms = {
    "in groups of 15": {"backward_bulk_size": 15},
    "with static memory": {"static_alloc": True, "static_shape": True},
    "one by one": {"backward_bulk_size": 1},
}
for how in forms.values():
    nets.append(lenet_in_gluon())
    nets[-1].initialize(ctx=two)
    nets[-1].hybridize(**how)
early = {}
for form, operations in zip(forms, profiled_steps(nets)):
    ready, end = sums_and_end(operations)
    early[form] = sum(t < end for t in ready)
    print(f"{form}: {early[form]} of {len(ready)} sums begin before", end=" ")
    print(f"the end of the backward pass; it takes {end:.0f} ms, and they begin at")
    print("   ", ", ".join(f"{t:.1f}" for t in ready), "ms")
for form in ("in groups of 15", "one by one"):
    chapter.answer(f"early sums {form}", early[form])

# %% [markdown]
# **What you see.** In groups of 15 operators no sum begins before the backward pass
# ends: LeNet's whole backward pass is one group, so all gradients are ready at the same
# time. With each operator alone, six of the eight sums begin earlier. Only those of the
# first convolution, whose gradients come last, have nothing to hide behind. So MXNet's
# engine overlaps, as its design notes say, and its grouping of operators undoes that
# for a network as small as LeNet. A deep network has many groups, and its sums overlap
# by groups. With static memory, as in chapter 5, the groups are cut elsewhere, and some
# of LeNet's sums begin early, too.
#
# ## Buckets
#
# PyTorch's DDP does by intention what the groups do by accident. It joins gradients,
# last layers first, to *buckets* of 25 MB and sums a bucket when its last gradient is
# ready ([Li et al. 2020](https://arxiv.org/abs/2006.15704)). Small buckets start early.
# Large buckets save the fixed time that each sum costs.
#
# The cell times sums of LeNet's gradients in buckets of 1, 2, 4 and 8 arrays. Then it
# asks what each would cost on a slow link of 1 Gbit/s with 1 ms per message, given the
# times above at which gradients are ready. What counts is the time *after* the end of
# the backward pass.
#
# *Predict before you run*: which bucket is fastest to sum, 1, 2, 4 or 8 arrays? And
# which is the first to be done on the slow link?


# %%
def milliseconds_of_sums(sizes, repeats=15):
    gradients = [[np.ones(size, ctx=device) for device in two] for size in sizes]
    times = []
    for _ in range(repeats):
        npx.waitall()
        start = time.perf_counter()
        for data in gradients:
            allreduce(data)
        npx.waitall()
        times.append(1e3 * (time.perf_counter() - start))
    return median(times)


def after_backward(counts, sizes, per_message=1.0, bytes_per_ms=125_000):
    """Milliseconds from the backward pass's end until the last bucket is summed."""
    done = 0.0
    for count, size in zip(counts, sizes):
        done = max(done, ready[count - 1]) + per_message + 4 * size / bytes_per_ms
    return done - end


chapter.predict("arrays in the bucket that is fastest to sum", None)
chapter.predict("arrays in the bucket that is fastest on the slow link", None)
summed, late = {}, {}
arrays = [p.size for p in init_lenet()][::-1]  # the last layer's gradients come first
for n in (1, 2, 4, 8):
    sizes = [sum(arrays[i : i + n]) for i in range(0, 8, n)]
    counts = range(n, 9, n)  # a bucket is ready with its last array
    summed[n], late[n] = milliseconds_of_sums(sizes), after_backward(counts, sizes)
    print(f"{len(sizes)} bucket(s) of {n}: summed in {summed[n]:.2f} ms", end="; ")
    print(f"on the slow link {late[n]:.1f} ms after the backward pass")
best = min(summed, key=summed.get)
chapter.answer("arrays in the bucket that is fastest to sum", best)
best = min(late, key=late.get)
chapter.answer("arrays in the bucket that is fastest on the slow link", best)

# %% [markdown]
# **What you see.** Alone, one large bucket is fastest, since each sum has a fixed cost.
# On the slow link a bucket per layer wins: the dense layers, with four fifths of the
# bytes, travel behind the convolutions' backward pass, and only a small bucket is left
# at the end. On two contexts of one machine there is next to nothing to hide. Therefore
# the package's training from scratch sums all gradients in one bucket at the end.
#
# ## In pieces: each device updates its half
#
# Adam keeps two numbers per parameter, the running means m and v of the gradient and of
# its square. In data parallelism every device keeps all of them and computes the same
# update. That is a waste, and ZeRO's first stage ends it
# ([Rajbhandari et al. 2020](https://arxiv.org/abs/1910.02054)):
#
# 1. **reduce-scatter**: device k receives the sum of part k of the gradients only;
# 2. it updates part k of the parameters, with m and v of this part;
# 3. **all-gather**: every device receives the updated parts of the others.
#
# An all-reduce is a reduce-scatter and an all-gather (chapter 1). Here the update
# stands between the two. In the cell all arrays that leave a device go through `send`,
# which counts their bytes. `train_batch` calls `reduce` when the shards' gradients are
# there; both ways of stepping take its place and do the update, too.
#
# *Predict before you run*: LeNet has 129,068 parameters of 4 bytes. How many bytes
# does a step send in plain data parallelism, and how many in pieces? How much memory
# do m and v take on each device in pieces? Will the parameters agree?

# %%
chapter.predict("bytes per step, in pieces", None)
chapter.predict("bytes of m and v, in pieces", None)
BATCH, sent = 64, []


def send(array, device):
    sent.append(4 * array.size)
    return array.copyto(device)


def flat(arrays):
    return np.concatenate([array.reshape(-1) for array in arrays])


def write(params, values):
    start = 0
    for p in params:
        p[:] = values[start : start + p.size].reshape(p.shape)
        start += p.size


def adam(values, g, state, lr=1e-3):
    """A step of Adam on flat arrays, in place."""
    m, v = state["m"], state["v"]
    state["t"] += 1
    m[:] = 0.9 * m + 0.1 * g
    v[:] = 0.999 * v + 0.001 * g * g
    m_hat, v_hat = m / (1 - 0.9 ** state["t"]), v / (1 - 0.999 ** state["t"])
    values -= lr * m_hat / (np.sqrt(v_hat) + 1e-8)


def plain(device_params, states):
    grads = [flat([p.grad for p in replica]) / BATCH for replica in device_params]
    grads[0] += send(grads[1], two[0])
    grads[1] = send(grads[0], two[1])
    for replica, g, state in zip(device_params, grads, states):
        values = flat(replica)
        adam(values, g, state)
        write(replica, values)


def in_pieces(device_params, states):
    grads = [flat([p.grad for p in replica]) / BATCH for replica in device_params]
    half, updated = grads[0].size // 2, []
    for k, part in enumerate((slice(0, half), slice(half, None))):
        g = grads[k][part] + send(grads[1 - k][part], two[k])  # reduce-scatter
        values = flat(device_params[k])[part]
        adam(values, g, states[k])
        updated.append(values)
    first, second = updated  # all-gather
    write(device_params[0], np.concatenate([first, send(second, two[0])]))
    write(device_params[1], np.concatenate([send(first, two[1]), second]))


X_train, y_train, X_test, y_test = fashion_sample()
X_train = np.array(X_train[:, None] / 255, dtype="float32")  # (n, 1, 28, 28)
results = {}
for step, parts in ((plain, 1), (in_pieces, 2)):
    device_params = [get_params(init_lenet(scale=0.1), device) for device in two]
    size = sum(p.size for p in device_params[0]) // parts
    states = [
        {"m": np.zeros(size, ctx=device), "v": np.zeros(size, ctx=device), "t": 0}
        for device in two
    ]
    sent.clear()
    for i in range(0, 10 * BATCH, BATCH):
        train_batch(
            X_train[i : i + BATCH],
            y_train[i : i + BATCH],
            device_params,
            two,
            lr=0,
            reduce=partial(step, states=states),
            update=lambda params, lr, n: None,
        )
    memory = 4 * (states[0]["m"].size + states[0]["v"].size)
    results[step] = sum(sent) // 10, memory, flat(device_params[1]).asnumpy()
    print(f"{step.__name__:9}: {results[step][0]:,} bytes sent per step, ", end="")
    print(f"m and v take {memory:,} bytes on each device")

(bytes_plain, memory_plain, p), (bytes_pieces, memory_pieces, q) = results.values()
assert bytes_plain == bytes_pieces and memory_plain == 2 * memory_pieces
print(f"after 10 steps the parameters differ by {abs(p - q).max():.1e}")
assert abs(p - q).max() < 1e-6
chapter.answer("bytes per step, in pieces", bytes_pieces)
chapter.answer("bytes of m and v, in pieces", memory_pieces)

# %% [markdown]
# **What you see.** The same bytes, the same parameters, and half of the optimizer's
# memory. With N devices m and v take an N-th on each. PyTorch calls this
# `ZeroRedundancyOptimizer`. ZeRO's second stage keeps only part k of the gradients, and
# the third only part k of the parameters, too, which have to be gathered again in every
# forward and backward pass: half as many bytes more
# ([Rajbhandari et al. 2020](https://arxiv.org/abs/1910.02054)). PyTorch's FSDP is the
# third stage.
#
# For LeNet this saves nothing worth having: its activations take much more (chapter
# 11). For a network of billions of parameters m and v are most of the memory.
#
# ## Less: average now and then
#
# Now each device takes H steps on its own shards, as if it were alone, and then all
# replicas are replaced by their mean: *local SGD*
# ([Stich 2019](https://arxiv.org/abs/1805.09767)). With H = 1 it is data parallelism,
# because the mean of two steps from the same parameters is a step along the mean
# gradient. With H = an epoch it is the averaging of the least-squares notes, which
# chapter 8 takes apart. The bytes shrink to 1/H. The result is another one.
#
# *DiLoCo* ([Douillard et al. 2023](https://arxiv.org/abs/2311.08105)) takes the change
# that the averaging brings as a gradient, for an *outer* step with Nesterov momentum.
# Its authors train language models over slow links with H = 500, and AdamW as the inner
# optimizer. Here the inner one is plain SGD.


# %%
def average(device_params):
    """Replace all replicas by their mean; the bytes that this sends."""
    for arrays in zip(*device_params):
        allreduce(arrays)
        for array in arrays:
            array /= len(arrays)
    return 2 * (len(device_params) - 1) * sum(4 * p.size for p in device_params[0])


def local_step(X, y, device_params, lr):
    for X_k, y_k, replica, device in zip(*split_batch(X, y, two), device_params, two):
        train_batch(X_k, y_k, [replica], [device], lr)


def outer_step(device_params, start, velocity, lr=0.7, momentum=0.9):
    """DiLoCo's step from `start`, the parameters after the last average."""
    for p, v, *replicas in zip(start, velocity, *device_params):
        change = p - replicas[0]
        v[:] = momentum * v + change
        p -= lr * (change + momentum * v)
        for replica in replicas:
            p.copyto(replica)


local, summed = ([get_params(init_lenet(scale=0.1), d) for d in two] for _ in range(2))
for i in range(0, 10 * BATCH, BATCH):
    X, y = X_train[i : i + BATCH], y_train[i : i + BATCH]
    local_step(X, y, local, lr=0.1)
    average(local)
    train_batch(X, y, summed, two, lr=0.1)
difference = abs(flat(local[1]) - flat(summed[1])).max().item()
print(f"H = 1 against data parallelism, after 10 steps: {difference:.1e}")
assert difference < 1e-5

# %% [markdown]
# **What you see.** With H = 1 the difference is rounding.
#
# *Predict before you run*: two epochs of 78 steps. How many points of accuracy do you
# lose with 1/16 of the bytes? And with an average per epoch?


# %%
def train(steps_between, outer=False, num_epochs=2, lr=0.1):
    """Bytes sent, and test accuracy at the end."""
    device_params = [get_params(init_lenet(scale=0.1), device) for device in two]
    start = get_params(device_params[0], two[0])
    velocity = [np.zeros_like(p) for p in start]
    rng, steps, num_bytes = numpy.random.default_rng(0), 0, 0
    for _ in range(num_epochs):
        order = rng.permutation(len(X_train))
        for i in range(0, len(order) - BATCH + 1, BATCH):
            batch = order[i : i + BATCH]
            local_step(X_train[batch], y_train[batch], device_params, lr)
            steps += 1
            if steps % steps_between == 0:
                num_bytes += average(device_params)
                if outer:
                    outer_step(device_params, start, velocity)
    if steps % steps_between:
        num_bytes += average(device_params)
    return num_bytes, evaluate_accuracy(X_test, y_test, device_params, two)


chapter.predict("points lost with H = 16", None)
ways = {f"H = {h}": (h, False) for h in (1, 4, 16, 64)}
ways["H = an epoch"] = (78, False)
ways["H = 16, outer momentum"] = (16, True)
trained = {name: train(*how) for name, how in ways.items()}
for name, (num_bytes, acc) in trained.items():
    print(f"{name:22} {num_bytes / 1e6:7.1f} MB sent, accuracy {acc:.3f}")
lost = 100 * (trained["H = 1"][1] - trained["H = 16"][1])
chapter.answer("points lost with H = 16", round(lost, 1))
chapter.score()

# %%
figure = Figure(figsize=(6, 3), layout="constrained")
axes = figure.subplots()
for name, (num_bytes, acc) in trained.items():
    color = "#D55E00" if "outer" in name else "#0072B2"
    axes.semilogx(num_bytes / 1e6, acc, "o", color=color)
    words = {"xytext": (0, 7), "textcoords": "offset points", "ha": "center"}
    axes.annotate(name, (num_bytes / 1e6, acc), fontsize=8, **words)
axes.set(xlabel="MB sent in the training", ylabel="test accuracy", xlim=(1, 400))
axes.margins(y=0.3)
chapter.show(figure, "bytes-and-accuracy")

# %% [markdown]
# **What you see.** With two devices and one seed, the accuracies for different H lie
# closer together than two seeds do. An average per epoch sends about 1/80 of the bytes.
# So several seeds are needed, and a longer training: three epochs of 200 steps, medians
# of five seeds ([table](../figures/benchmarks/local_sgd.txt),
# [record](../figures/benchmarks/local_sgd.jsonl)).
#
# | [averages](../figures/benchmarks/local_sgd.txt) | sent | accuracy | outer momentum |
# |---|---|---|---|
# | every step | 590.8 MiB | 0.790 (0.776-0.792) | 0.833 (0.825-0.850) |
# | every 4 steps | 147.7 MiB | 0.786 (0.777-0.791) | |
# | every 16 steps | 38.4 MiB | 0.791 (0.771-0.792) | 0.835 (0.832-0.835) |
# | every 64 steps | 11.8 MiB | 0.788 (0.769-0.791) | 0.811 (0.811-0.822) |
# | every epoch | 3 MiB | 0.789 (0.773-0.790) | 0.797 (0.781-0.800) |
#
# Without momentum no H can be told from another: for this small network two devices
# that rarely talk learn as much, with 1/200 of the bytes. The outer momentum helps, and
# it helps as much where the devices talk in every step. With 64 steps and more between
# two averages it has too few outer steps to gain speed.
#
# ## Measured by the package
#
# `d2lpar.local_sgd` trains in the same way, with all parameters in one bucket. The last
# cell prints what a short training sends and reaches on all devices of this machine,
# and `benchmarks/local_sgd.py` made the record above.

# %%
if __name__ == "__main__":
    chapter.measure("communication")

# %% [markdown]
# **What you see.** One device sends nothing. With more of them, the bytes go down with
# the number of averages, as in the cells above.
#
# ## Summary
#
# > **Takeaway.** Bytes = 2 (N - 1) x 4 x parameters x steps / H: three epochs of 200
# > steps send 590.8 MiB for H = 1 and 3 MiB for H = 200, at the same accuracy within
# > the seeds' spread ([record](../figures/benchmarks/local_sgd.txt)).
#
# - *Later*: MXNet starts a sum when its gradient is ready, unless the whole backward
#   pass is one group of operators. Buckets hide the bytes, but not the last message.
# - *In pieces*: reduce-scatter, update, all-gather send as much as an all-reduce, and
#   the optimizer's memory is divided by the number of devices.
# - *Less*: H local steps send 1/H of the bytes. It is another training, whose accuracy
#   has to be measured, over several seeds.
# - Compare like with like: an outer momentum is also a momentum.
#
# ## Exercises
#
# 1. Add groups of 8, 4 and 2 operators to `forms`. Which of them let sums begin early?
#    *(8 does not: the group with the gradients of the dense layers still ends with the
#    slow convolution. With 4, 2 and 1 six sums of eight begin early, and the smaller
#    the group, the earlier.)*
# 2. *On paper, with the times printed above.* Which bucket wins `after_backward` on a
#    link of 10 Gbit/s (`bytes_per_ms=1_250_000`)? *(Still one bucket per layer, but
#    buckets of 4 arrays are nearly as good: on so fast a link messages cost more than
#    bytes.)*
# 3. Let `in_pieces` and `plain` take a step of plain SGD in place of `adam`. What does
#    ZeRO save? *(No memory: SGD keeps none. Each device computes half of the update, a
#    fraction of a millisecond.)*
# 4. *On paper.* Where would gradient clipping by the norm of the whole gradient go in
#    `in_pieces`? *(Each device knows only its part of the sum. The squared norms of the
#    parts have to be summed over the devices first: one all-reduce of one number.)*
# 5. Never average before the end: `train(10**9)`. *(About as accurate as the others
#    here. Both replicas start from the same parameters and stay close enough in two
#    epochs for their mean to make sense. Started from two seeds they would be two
#    networks, whose mean is right for three images of ten.)*
# 6. Is it the rare averaging that makes DiLoCo better? Try `train(1, outer=True)`. *(It
#    is better still than H = 16 with the outer momentum: what helps is the momentum. A
#    fair comparison gives plain data parallelism a momentum, too.)*
