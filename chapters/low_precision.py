# %% [markdown]
# # Inference in low precision
#
# What does a trained network lose if its numbers have 8 bits instead of 32, and what
# does it gain? According to a published wiki page on GPUs [1], a T4 computes 8.1 TFLOPS
# in float32 and **130 TOPS** in INT8, a factor of 16. BERT loses 6.43 % of its score in
# INT8, and at most 0.67 % if its activations are *clipped* at 10, so that larger ones
# become 10.
#
# ![Above, eight numbers between 0 and 1 on a line with eight codes, one number at each
# code. Below, one number is 8, and the others share the codes 0 and
# 1](../docs/drawings/outlier-steps.svg)
#
# **In one sentence.** INT8 leaves a tensor at most 255 steps, so one outlier takes away
# the resolution of all other numbers, which clipping or equalising partly restores.
#
# All numbers of a tensor share one scale, so clipping can help, as the drawing shows.
# In this chapter we round LeNet to bfloat16 and to INT8 by hand, and compare with
# MXNet's own *quantization*, as rounding to integers is called. Then we give the
# network an outlier like BERT's, and remove it.
#
# Run this chapter as a notebook, or `python chapters/low_precision.py --num-devices 1`.

# %%
from textwrap import fill

import numpy
from matplotlib.figure import Figure

from d2lpar import chapter, datasets, lenet, lenet_concise, np, npx
from d2lpar.low_precision.measure import measure
from d2lpar.low_precision.result import table
from d2lpar.records.kinds import PrecisionRecord

data = datasets.load("sample")  # for the cells below
state = lenet.start(seed=0, scale=0.1)  # larger weights, off the plateau at once
recipe = {"global_batch_size": 32, "lr": 0.2, "num_epochs": 3}
*_, last = lenet_concise.train(1, devices="cpu:1", data=data, state=state, **recipe)
print(f"trained in float32: test acc {last.test_acc:.3f}")

# %% [markdown]
# ## bfloat16: half of the bits
#
# A float32 has 1 bit for the sign, 8 for the exponent and 23 for the digits. bfloat16
# is its upper half: the same sign, the same exponent, and 7 bits of digits.
#
# *Predict before you run*: what becomes of 257 in bfloat16?


# %%
def to_bfloat16(x):
    """x rounded to the nearest bfloat16, kept as float32."""
    bits = numpy.asarray(x, numpy.float32).view(numpy.uint32)
    nearest = bits + 0x7FFF + ((bits >> 16) & 1)  # a tie goes to the even number
    return (nearest & 0xFFFF0000).astype(numpy.uint32).view(numpy.float32)


chapter.predict("257 in bfloat16", None)  # write your number for None
for number in (numpy.pi, 1 / 3, 257.0, 1e38):
    bits = f"{numpy.float32(number).view(numpy.uint32):032b}"
    kept = to_bfloat16([number])[0]
    print(f"{number:10.4g}  {bits[:16]} {bits[16:]}  ->  {kept:.7g}")
chapter.answer("257 in bfloat16", to_bfloat16([257.0])[0])

# %% [markdown]
# Together with the leading 1, which is not stored, there are 8 significant bits. From
# 256 to 512 neighbouring numbers therefore differ by 2, and 257 becomes 256. In decimal
# digits `8 * log10(2) = 2.4` are left: pi becomes 3.140625. The exponent and therefore
# the range are those of float32. In contrast, float16 has 5 bits of exponent and ends
# at 65,504.
#
# ## INT8: integers with one scale
#
# INT8 has no exponent. All numbers of a tensor share one *step*, and each number is
# rounded to a multiple of it. There are two types. With a sign the integers run from
# -127 to 127, so the step is `largest / 127`. Tensors without negative entries, such as
# the output of a ReLU, use the unsigned type from 0 to 255, with a step of
# `largest / 255`.


# %%
def to_int8(x, limit):
    """Integers for x, and the size of a step; a limit may differ by channel."""
    most = 255 if x.min() >= 0 else 127
    step = limit / most
    return np.clip(np.round(x / step), -most, most), step


W = np.array(state.params[6])  # of the last layer, (128, 10)
integers, step = to_int8(W, float(abs(W).max()))
print("weights: ", W[0, :5])
print("integers:", integers[0, :5], f"steps of {step:.5f}")
off = float(abs(W - integers * step).max())
print(f"rounded by at most {off:.5f}, half a step is {step / 2:.5f}")
assert off <= step / 2 * 1.001

# %% [markdown]
# A product of integers is exact, and a sum of such products fits into 32 bits if it has
# at most `2**31 / (255 * 127) = 66,311` terms. The scales (steps) of both factors are
# applied once, to the final sum.

# %%
h = np.random.uniform(size=(4, 128))
h_integers, h_step = to_int8(h, 1.0)
sums = numpy.dot(
    h_integers.asnumpy().astype(numpy.int32), integers.asnumpy().astype(numpy.int32)
)
in_int8, in_float32 = sums * (h_step * step), np.dot(h, W).asnumpy()
print(f"largest sum: {abs(sums).max():,}, of 2,147,483,647")
off, largest = abs(in_int8 - in_float32).max(), abs(in_float32).max()
print(f"scores off by {off:.3f} of {largest:.1f}")

# %% [markdown]
# ## LeNet in INT8, by hand
#
# Each convolution and each dense layer receives its input and its weights in INT8. The
# limits of the weights, their largest magnitudes, are known. The limits of an input
# depend on the batch. Either we scan each batch for its largest number, or we find the
# limits in advance with some training images, which is called *calibration*. Weights
# can also have one scale *per output channel* instead of one per tensor, since a scale
# that is constant within a sum can be applied after it.
#
# *Predict before you run*: for how many of 1,000 test images does INT8 choose another
# class than float32?


# %%
def rounded(x, limit):
    integers, step = to_int8(x, limit)
    return integers * step


def rounded_weights(W, per_channel=False):
    """W of a convolution (out, in, h, w) or of a dense layer (in, out) in INT8."""
    axes = ((1, 2, 3) if W.ndim == 4 else 0) if per_channel else None
    return rounded(W, abs(W).max(axis=axes, keepdims=True))


def lenet_int8(X, params, limits=None, per_channel=False):
    """Scores, and the largest number of each layer's input."""
    W1, b1, W2, b2, W3, b3, W4, b4 = (np.array(p) for p in params)
    W1, W2, W3, W4 = (rounded_weights(W, per_channel) for W in (W1, W2, W3, W4))
    seen = []

    def low(h):
        seen.append(float(abs(h).max()))
        return rounded(h, limits[len(seen) - 1] if limits else seen[-1])

    def pool(h):
        return npx.pooling(h, (2, 2), pool_type="avg", stride=(2, 2))

    h = npx.convolution(low(X), W1, b1, kernel=(3, 3), num_filter=20)
    h = pool(npx.relu(h))
    h = npx.convolution(low(h), W2, b2, kernel=(5, 5), num_filter=50)
    h = pool(npx.relu(h)).reshape((len(X), -1))
    h = npx.relu(np.dot(low(h), W3) + b3)
    return np.dot(low(h), W4) + b4, seen


X_test = np.array(datasets.to_float(data.X_test))
X_calibration = np.array(datasets.to_float(data.X_train[:400]))
y_float32 = lenet.lenet(X_test, [np.array(p) for p in state.params])
y_float32 = y_float32.asnumpy().argmax(axis=1)


def judged(name, scores):
    """Accuracy and agreement with float32, which are also printed."""
    y = scores.asnumpy().argmax(axis=1)
    accuracy, agreement = (y == data.y_test).mean(), (y == y_float32).mean()
    print(f"{name}: test acc {accuracy:.3f}, agrees with float32 {agreement:.3f}")
    return float(accuracy), float(agreement)


chapter.predict("of 1,000 images in another class", None)
_, limits = lenet_int8(X_calibration, state.params)
print("the largest input of each layer:", numpy.round(limits, 2))
by_hand = {
    name: judged(name, lenet_int8(X_test, state.params, *used)[0])
    for name, used in {
        "int8-none": (None,),
        "int8-naive": (limits,),
        "int8-channels-naive": (limits, True),
    }.items()
}
in_bfloat16 = [np.array(to_bfloat16(p)) for p in state.params]
scores = lenet.lenet(np.array(to_bfloat16(X_test.asnumpy())), in_bfloat16)
by_hand["bfloat16"] = judged("bfloat16", scores)
changed = 1000 * (1 - by_hand["int8-naive"][1])
chapter.answer("of 1,000 images in another class", round(changed), exact=False)

# %% [markdown]
# Rounding changes a score by a small amount, so only images near a boundary between two
# classes change their class. Some of them become right, others become wrong, and others
# were wrong and remain so. Suppose that d images change their class independently, and
# that on average equal numbers become right and wrong. Then the number of right images
# changes with a standard deviation of at most `sqrt(d)`. We speak of a loss only if the
# difference is above `2 * sqrt(d)`, which chance rarely exceeds. If similar images
# change together, because they are rounded to the same steps, the effect of chance is
# larger.
#
# ## MXNet's own quantization, and its speed
#
# Our version rounds the numbers but computes in float32, so it shows the loss of
# accuracy, not the gain in speed. MXNet replaces the operators by integer ones and
# offers two calibrations. "naive" uses the largest number seen, as we do. "entropy"
# picks the clipping threshold for which the distribution of the quantized numbers is
# nearest to the original one in Kullback-Leibler divergence. Without calibration
# ("none"), MXNet scans every batch for its range.
#
# On CPUs a calibrated convolution has one scale per output channel for its weights,
# also where we ask MXNet for one per tensor. The rows "int8-channels" below therefore
# differ from "int8" in the dense layers only.
#
# Each precision runs in its own process, because some of them crash MXNet.

# %%
names = ("float32", "bfloat16", "float16", "int8-none", "int8-naive", "int8-entropy")
measured = measure(
    devices="cpu:1",
    data=data,
    params=state.params,
    precisions=names,
    calibration_images=400,
    repeats=5,
)
rows = {row.precision: row for row in measured}
print(table(rows.values()))
for name, (test_acc, agreement) in by_hand.items():
    if name in rows and rows[name].supported:
        print(f"{name} by hand {test_acc:.3f}, MXNet {rows[name].test_acc:.3f}")
        assert abs(test_acc - rows[name].test_acc) <= 0.03
        assert abs(agreement - rows[name].agreement) <= 0.05

# %% [markdown]
# The lines below the table name the reason for each row without numbers, and compare
# MXNet with our version. The accuracies agree within 0.03. The speed depends on whether
# the processor has instructions for the type. The rows are measured one after the
# other, each in one process. Compare their speeds only if they differ by more than
# equal runs do, and if the order is the same when you run the cell again. The column
# "bytes" shows that MXNet does not keep all weights in INT8: on CPUs its convolutions
# keep theirs in float32 and round them when they first run.
#
# ## What an outlier costs
#
# To imitate BERT, we give LeNet an outlier: we *stretch* one channel of the first
# convolution by 128, and scale the weights that use this channel by 1/128. In float32
# the function stays the same, because ReLU and average pooling let a positive factor
# through. The same transformation can also remove an outlier. To *equalise* the
# channels, we choose the factors such that the weights before and after are equally
# large [2].


# %%
def scaled(params, scale):
    """The same function, with channel c of the first convolution times scale[c]."""
    W1, b1, W2, *rest = params
    return [
        W1 * scale[:, None, None, None],
        b1 * scale,
        W2 / scale[:, None, None],
        *rest,
    ]


def used(W):
    """The largest |weight| that uses each input channel of W (out, in, h, w)."""
    return abs(W).max(axis=(0, 2, 3))


def stretch(params, factor):
    scale = numpy.ones(len(params[0]), "float32")
    scale[used(params[2]).argmax()] = factor  # the channel that matters most
    return scaled(params, scale)


def equalize(params):
    made = abs(params[0]).max(axis=(1, 2, 3))
    return scaled(params, numpy.sqrt(used(params[2]) / made))


# %% [markdown]
# How much resolution is left for the other channels? The input of the second
# convolution follows a ReLU, so it has 255 steps. If the outlier exceeds the rest by a
# factor of 128, the rest shares `255 / 128 = 2` of them. With a sign it would be one
# step.
#
# We try three remedies: *clip* the limit of the outlier's tensor, use one scale *per
# channel* for the weights, or *equalise*.
#
# *Predict before you run*: which network agrees least with float32: with the full limit
# (1), or with a limit of 0.7 or 0.1 of it? (If we clip, the stretched channel is wrong,
# but the other channels have finer steps.)

# %%
chapter.predict("cut at 1, 0.7 or 0.1 agrees least", None)
stretched = stretch(state.params, factor=128)
_, wide = lenet_int8(X_calibration, stretched)
print("the largest input of each layer:", numpy.round(wide, 2))
agreements = {}
for part in (1, 0.7, 0.1):
    clipped = [wide[0], part * wide[1], *wide[2:]]
    scores, _ = lenet_int8(X_test, stretched, clipped)
    agreements[part] = judged(f"second limit x {part}", scores)[1]
per_channel = judged("per channel", lenet_int8(X_test, stretched, wide, True)[0])
equal = equalize(stretched)
_, narrow = lenet_int8(X_calibration, equal)
equalised = judged("equalised", lenet_int8(X_test, equal, narrow)[0])
chapter.answer("cut at 1, 0.7 or 0.1 agrees least", min(agreements, key=agreements.get))
assert equalised[1] > max(*agreements.values(), per_channel[1])

# %% [markdown]
# A cut trades the error of one channel for the resolution of the nineteen others. The
# channel that we stretch and clip has the largest weight in the next layer. A deep cut
# should therefore do more damage than the outlier: compare the row "x 0.1" with the row
# "x 1".
#
# Scales per channel remove the outlier from the *weights* of the first convolution,
# where it is an output channel, but not from the *input* of the second, which is still
# a single tensor. Equalising removes it from both, at no cost when the network runs,
# and agrees best.
#
# The histogram shows what the shared step means for the other channels.

# %%
h = npx.relu(
    npx.convolution(
        X_calibration, *map(np.array, stretched[:2]), kernel=(3, 3), num_filter=20
    )
)
h = npx.pooling(h, (2, 2), pool_type="avg", stride=(2, 2)).asnumpy()
outlier = used(state.params[2]).argmax()
others, its = numpy.delete(h, outlier, axis=1), h[:, outlier]
step = wide[1] / 255
zero = (others[others > 0] < step / 2).mean()
print(f"others: {100 * zero:.0f} % of the positive values are below half a step")

figure = Figure(figsize=(6, 2.8), layout="constrained")
axes = figure.subplots()
bins = numpy.geomspace(1e-3, h.max(), 60)
axes.hist(others[others > 0], bins, color="0.7", label="other channels")
axes.hist(its[its > 0], bins, color="#882255", alpha=0.7, label="stretched channel")
for part in (1, 0.7, 0.1):
    axes.axvline(part * wide[1], color="#0072B2", lw=1)
axes.axvline(step / 2, color="#D55E00", ls="--", label="half a step")
axes.set(xscale="log", yscale="log", ylabel="values")
axes.set_xlabel("input of the second convolution; blue: the limits 0.1, 0.7 and 1")
axes.legend(fontsize=8, loc="upper left")
axes.set_ylim(top=1e6)
chapter.show(figure, "outlier")

# %% [markdown]
# Values to the left of the dashed line are rounded to zero. The printed share counts
# them for the other channels.
#
# ## Accuracy lost
#
# With 1,000 images a difference of a few tenths of a point means little. We therefore
# read the record of a network that was trained on all of Fashion-MNIST and tested on
# its 10,000 test images ([table](../figures/low_precision/book,threads=1-results.txt)).
# For each row we compare the loss with `2 * sqrt(d)`, where d images have changed their
# class. (BERT's losses above are in per cent of a score, ours in points of accuracy.)
#
# *Predict before you run*: how many points of accuracy does calibrated INT8 ("naive")
# lose on the network with the outlier?

# %%
chapter.predict("points lost with the outlier", None)
record = chapter.record("low_precision/book-1thread-cpu1.jsonl")
book = {
    (row.weights, row.precision): row
    for row in record.lines_of(PrecisionRecord)
    if row.supported
}
float32 = book["trained", "float32"].test_acc
print(f"float32: {100 * float32:.2f} points")
lost, chance = {}, {}
for (weights, precision), row in book.items():
    changed = 10_000 * (1 - row.agreement)  # images; one is 0.01 points
    points = 100 * (float32 - row.test_acc)
    lost[weights, precision] = points
    chance[weights, precision] = 2 * changed**0.5 / 100
    print(f"{weights:9} {precision:21} lost {points:5.2f} points", end=", ")
    print(f"2 sqrt(d) is {chance[weights, precision]:.2f}")
chapter.answer("points lost with the outlier", lost["stretched", "int8-naive"])
chapter.score()

# %% [markdown]
# Without an outlier, and after equalising, "naive" and "entropy" lose a few tenths of a
# point at most. In two of these four rows the loss is above `2 * sqrt(d)`, so it is
# unlikely to be chance alone. With one scale per channel in the dense layers, too, the
# loss is below it. With the outlier, "naive" loses more than ten points, and the
# clipping of "entropy" saves about half of them. How could one have known? Nineteen of
# twenty channels are left with two steps.
#
# Without calibration the network with the outlier loses even more. There are two
# candidates for the cause. MXNet uses the signed type where it has no limits, so the
# other channels are left with one step instead of two. Its convolutions then also have
# only one scale per tensor for their weights. Exercise 4 tests both. Calibration also
# matters for the speed: "naive" is more than twice as fast as "none".
#
# ## On a GPU
#
# On an H100 the results differ. The next cell prints the speeds of the record and, for
# each precision that did not run, MXNet's message.

# %%
gpu = chapter.record("gpus/low_precision/book-gpu1.jsonl")
for row in gpu.lines_of(PrecisionRecord):
    if row.weights == "trained":
        speed = f"{row.images_per_sec:,.0f} images/s"
        said = speed if row.supported else row.why_not[-120:]
        print(fill(f"{row.precision}: {said}", 88))

# %% [markdown]
# The rule of Chapter 4 tells no speedup of float16 over float32 there.
#
# LeNet does not run in INT8. With one scale per channel, MXNet refuses it on any GPU.
# With one scale per tensor, its convolution on GPUs requires that the numbers of input
# channels and of filters be multiples of 4. The message names the first condition, and
# the source of the operator (`quantized_conv.cc`) names both. LeNet's images have one
# channel, and its second convolution has 50 filters. Three more channels and two more
# filters of zeros would satisfy the conditions without changing the function. However,
# we did not run this network on a GPU. We therefore do not know whether MXNet's INT8
# works there, nor how fast it is. The wiki's factor of 16 remains untested.
#
# ## All precisions, measured
#
# Finally, we measure all precisions on this machine, including one scale per channel.
# With `--num-devices 1,2` each device has its own network.

# %%
if __name__ == "__main__":
    runs = chapter.measure("low_precision", num_devices=1)

# %% [markdown]
# First check that the machine was idle. Run the cell again: the ratio of two rows of
# the same precision shows how much the speed of this machine varied. Ignore a ratio of
# two precisions that is closer to 1. Two precisions differ in speed if the last line
# says so, and in accuracy by the rule of `2 * sqrt(d)`. The file `results.txt` of the
# run names the reason for each row without numbers.
#
# ## Summary
#
# > **Takeaway.** The step of a tensor is `largest / 127`, or `largest / 255` if no
# > number is negative. An outlier of k times the rest leaves `127 / k` or `255 / k`
# > steps for the rest.
#
# bfloat16 keeps the range and 8 significant bits, and needs no calibration. INT8 has
# one step per tensor, so everything depends on the limits, which calibration finds in
# advance. Clipping trades one error for another. Equalising removes an outlier that
# belongs to one channel. We compare a loss of accuracy with the size of a chance
# fluctuation.
#
# ## Exercises
#
# 1. **Fewer bits.** Give `to_int8` 2^(bits - 1) - 1 steps (2^bits - 1 if no number is
#    negative) for 8 down to 2 bits. At how many bits does the agreement with float32
#    fall below 0.95? *(At 4 bits. Each bit less doubles the step and therefore the
#    rounding error. The agreement falls quickly once the error of a score is similar to
#    the distance of the best two classes.)*
# 2. *On paper.* LeNet has 129,068 parameters, 25,250 of them in the convolutions. How
#    many bytes do they take in float32, bfloat16 and INT8? Why has MXNet's INT8 network
#    204,850 bytes? *(`4 * 129,068 = 516,272`, half of it, and 129,068. MXNet keeps the
#    convolutions in float32: `4 * 25,250 + 103,818 = 204,818` bytes. The other 32 bytes
#    are the limits of the dense layers in float32: two limits for the weights and two
#    for the bias of each layer. With one scale per channel MXNet keeps all weights in
#    float32.)*
# 3. *On paper.* A tensor's largest magnitude is 6.35. What becomes of 0.02 and of 0.03
#    in INT8 with a sign? *(The step is `6.35 / 127 = 0.05`: 0.02 becomes 0, and 0.03
#    becomes 0.05.)*
# 4. **The type and the weights.** Let `to_int8` always use 127 and repeat the cells of
#    the outlier. Which part of the loss of "int8-none" is due to the type, and which to
#    the scales of the weights? *(Without the change, "per channel" resembles MXNet's
#    "int8-naive". The agreement falls from there to "second limit x 1" by the scales of
#    the weights. With the change, "second limit x 1" resembles "int8-none": the second
#    fall is that of the type. The record has a different network, so compare the falls
#    rather than the agreements.)*
# 5. **How far may one cut?** Clip the second limit of the stretched network to 0.9,
#    0.7, 0.5, 0.3, 0.1, 0.01 and 0.001 of it. Where is the agreement best? *(Between
#    the extremes: with 1 the other channels have two steps, and with 0.01 the stretched
#    channel is lost.)*
# 6. **How large an outlier?** Stretch by 1, 4, 16, 64, 128 and 512. *(Each factor of 2
#    takes one bit from the other channels. At 512 the largest of their numbers is
#    `255 / 512 = 0.5` steps: it is rounded to 0 or 1 step, and the average number to
#    0.)*
#
# ## Sources
#
# - [1] The GPU wiki, "Low Precision Inference on GPU",
#   <https://github.com/likejazz/likejazz.github.io>, in Korean
#   (`_wiki/GPU-Data-Science.md`, after NVIDIA's slides of session S9659, GTC 2019)
# - [2] Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias
#   Correction", <https://arxiv.org/abs/1906.04721>
