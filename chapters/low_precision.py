# %% [markdown]
# # Inference in low precision
#
# Source: the GPU wiki, "Low Precision Inference on GPU",
# <https://github.com/likejazz/likejazz.github.io>, in Korean
# (`_wiki/GPU-Data-Science.md`, after NVIDIA's slides of session S9659, GTC 2019)
#
# According to [the wiki](https://github.com/likejazz/likejazz.github.io) a T4 computes
# 8.1 TFLOPS in float32 and 130 TOPS in INT8, 16 times as many; and BERT loses 6.43 % of
# its score in INT8, or at most 0.67 % if its activations are cut off at 10. Here you
# train LeNet in float32, lower its precision after training, and measure gain and loss:
#
#     python chapters/low_precision.py --devices auto --num-devices 1
#     d2lpar run low_precision --preset book --num-devices 1 --threads 1
#
# **What you will learn.**
#
# - what bfloat16 and INT8 keep of a number, bit by bit;
# - to quantize a network by hand, in twenty lines, and with MXNet's own quantization;
# - what calibration is for, and what an outlier costs;
# - to read and to make a table of *accuracy lost*.

# %%
import numpy
from matplotlib.figure import Figure

from d2lpar import chapter, datasets, lenet, lenet_concise, mx, np, npx
from d2lpar.low_precision import measure
from d2lpar.low_precision.result import table

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
# *Predict before you run*: how many decimal digits are left of pi? What becomes of 257,
# and of 1e38?


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
# **What you see.** Two to three decimal digits are left: pi becomes 3.140625, and 257
# becomes 256. 1e38 stays in range, because the exponent has as many bits as before.
# float16, which gives the exponent only 5 bits, ends at 65,504.
#
# ## INT8: 256 steps between two limits
#
# INT8 has no exponent. All numbers of a tensor share one scale: the largest becomes
# 127, and the rest are rounded to multiples of largest / 127. What is never negative,
# as after a ReLU, gets all 255 steps.


# %%
def to_int8(x, limit):
    """Integers for x, and the size of a step."""
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
# A product of integers is exact, and its sum fits into 32 bits. The two scales are
# multiplied in once, at the end. This is what a T4's tensor cores do at 16 times the
# float32 rate of its CUDA cores
# ([wiki](https://github.com/likejazz/likejazz.github.io)):

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
# Each convolution and each dense layer gets its input and its weights in INT8. Weights
# have known limits. Those of an input depend on the batch: either every batch is
# searched for its largest number, or *calibration* finds the limits beforehand, from
# some training images.
#
# *Predict before you run*: 1,000 test images. How many of them will INT8 put into
# another class than float32 does?


# %%
def rounded(x, limit):
    integers, step = to_int8(x, limit)
    return integers * step


def lenet_int8(X, params, limits=None):
    """Scores, and the largest number of each layer's input."""
    W1, b1, W2, b2, W3, b3, W4, b4 = (np.array(p) for p in params)
    W1, W2, W3, W4 = (rounded(W, float(abs(W).max())) for W in (W1, W2, W3, W4))
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
scores = lenet.lenet(X_test, [np.array(p) for p in state.params])
y_float32 = scores.asnumpy().argmax(axis=1)


def accuracy_and_agreement(scores):
    y = scores.asnumpy().argmax(axis=1)
    return float((y == data.y_test).mean()), float((y == y_float32).mean())


chapter.predict("of 1,000 images in another class", None)
_, limits = lenet_int8(X_calibration, state.params)
print("the largest input of each layer:", numpy.round(limits, 2))
by_hand = {}
for name, used in (("int8-none", None), ("int8-naive", limits)):
    scores, _ = lenet_int8(X_test, state.params, used)
    by_hand[name] = accuracy_and_agreement(scores)
    print(
        "{}: test acc {:.3f}, agrees with float32 {:.3f}".format(name, *by_hand[name])
    )
in_bfloat16 = [np.array(to_bfloat16(p)) for p in state.params]
scores = lenet.lenet(np.array(to_bfloat16(X_test.asnumpy())), in_bfloat16)
by_hand["bfloat16"] = accuracy_and_agreement(scores)
print(
    "bfloat16: test acc {:.3f}, agrees with float32 {:.3f}".format(*by_hand["bfloat16"])
)
others = 1000 * (1 - by_hand["int8-naive"][1])
chapter.answer("of 1,000 images in another class", round(others))

# %% [markdown]
# **What you see.** A handful of the 1,000 images change their class, and the accuracy
# hardly moves: images near a boundary may fall to either side.
#
# ## MXNet's own, and its speed
#
# Our hand-written version rounds the numbers but still computes in float32, so it shows
# the loss of accuracy, not the gain in speed. MXNet replaces the operators by integer
# ones.
#
# "naive" calibration takes the largest value seen, as above; "entropy" cuts off
# outliers where that changes the distribution least. Without calibration MXNet searches
# every batch, which takes most of the time that INT8 saves, or, on one of our machines,
# more. Each precision is measured in a process of its own, since MXNet may crash; a row
# says what MXNet cannot do here.

# %%
task = measure.Task(
    X=data.X_test,
    y=data.y_test,
    y_float32=y_float32,
    X_calibration=data.X_train[:400],
    devices=[mx.cpu()],
    batch_size=200,
    repeats=5,
)
names = ("float32", "bfloat16", "float16", "int8-none", "int8-naive", "int8-entropy")
rows = {name: measure.measure_apart(name, state.params, task) for name in names}
print(table(rows.values()))
for name, (test_acc, agreement) in by_hand.items():
    if rows[name].supported:
        print(f"{name} by hand {test_acc:.3f}, MXNet {rows[name].test_acc:.3f}")
        assert abs(test_acc - rows[name].test_acc) <= 0.03
        assert abs(agreement - rows[name].agreement) <= 0.05

# %% [markdown]
# **What you see.** All precisions are within the noise of 1,000 images, where one image
# is 0.1 points. What differs is the time, and that depends on whether the processor has
# instructions for the type.
#
# ## What an outlier costs, and the remedy
#
# LeNet has narrow ranges and loses little. So give it an outlier, as BERT has: scale
# one channel by 128, and the weights that use it by 1/128. In float32 the function
# stays the same; in INT8 that channel now takes up nearly all the steps.
#
# ![An outlier's steps](../docs/drawings/outlier-steps.svg)
#
# *Predict before you run*: which agrees least with float32, leaving the outlier in (1),
# or cutting it off at 0.7 or at 0.1 of its size? (Cut off, its channel is wrong, but
# the others have their steps back.)
#
# The cell also tries two remedies. *Clip* the limits, by hand and by "entropy".
# *Equalise* the channels before quantizing: that undoes the scaling, whatever made it,
# at no cost when the network runs. ReLU and average pooling let a positive factor
# through, so a channel can be scaled up in one layer and its weights in the next layer
# scaled down:


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


chapter.predict("cut at 1, 0.7 or 0.1 agrees least", None)
stretched = stretch(state.params, factor=128)
untimed = task._replace(repeats=1)  # here only accuracy counts
found = {}
for weights, params in (("stretched", stretched), ("equalised", equalize(stretched))):
    for precision in ("int8-naive", "int8-entropy"):
        row = measure.measure_apart(precision, params, untimed, weights)
        found[weights, precision] = row
        words = row.why_not
        if row.supported:
            words = f"{row.test_acc:.3f}, agrees {row.agreement:.3f}"
        print(f"{weights}, {precision}: {words}")

_, wide = lenet_int8(X_calibration, stretched)
print("by hand, the largest input of each layer:", numpy.round(wide, 2))
agreements = {}
for part in (1, 0.7, 0.1):
    clipped = [wide[0], part * wide[1], *wide[2:]]
    test_acc, agreement = accuracy_and_agreement(
        lenet_int8(X_test, stretched, clipped)[0]
    )
    print(f"second limit x {part}: {test_acc:.3f}, agrees {agreement:.3f}")
    agreements[part] = agreement
chapter.answer("cut at 1, 0.7 or 0.1 agrees least", min(agreements, key=agreements.get))
chapter.score()

# %% [markdown]
# **What you see.** The outlier costs accuracy, as the table below says. A small cut
# helps a little, at least in agreement with float32, because the other channels get
# finer steps. A deep one does more harm than the outlier, because the channel that is
# cut off matters most. Equalising needs no cut and restores the accuracy.

# %%
_, before = lenet_int8(X_calibration, stretched)
h = npx.relu(
    npx.convolution(
        X_calibration, *map(np.array, stretched[:2]), kernel=(3, 3), num_filter=20
    )
).asnumpy()
figure = Figure(figsize=(6, 2.6), layout="constrained")
axes = figure.subplots()
axes.hist(h[h > 0], bins=numpy.geomspace(1e-3, h.max(), 60), color="0.7")
for part in (1, 0.7, 0.1):
    axes.axvline(part * before[1], color="#0072B2")
    axes.text(part * before[1], axes.get_ylim()[1], f"{part} ", ha="right", va="top")
axes.axvline(before[1] / 255, color="#D55E00", ls="--")
axes.set(xscale="log", yscale="log", ylabel="values")
axes.set_xlabel("input of the second convolution; blue: limits, orange: one INT8 step")
chapter.show(figure, "outlier")

# %% [markdown]
# Everything to the left of half a step is rounded to zero: with the outlier's limit
# that is most of the values of the other channels.
#
# ## Accuracy lost
#
# The wiki shows a table of this kind for BERT: what INT8 loses of the score in float32,
# and what is left of that loss with its remedy, GELU10, an activation that is cut off
# at 10 and so cannot have outliers. Here are its rows and ours.


# %%
def points_lost(row):
    """Points of accuracy lost against float32, as text."""
    if not (row.supported and rows["float32"].supported):
        return "-"
    return f"{100 * (rows['float32'].test_acc - row.test_acc):.2f}"


lost = [
    ("BERT, SQuAD 1.1 (F1), wiki", "6.43", "0.67 (GELU10)"),
    ("BERT, MRPC, wiki", "not said", "0.80 (GELU10)"),
]
for name, without, remedies in (
    ("LeNet", rows["int8-naive"], {"entropy": rows["int8-entropy"]}),
    (
        "LeNet with an outlier",
        found["stretched", "int8-naive"],
        {
            "entropy": found["stretched", "int8-entropy"],
            "equalised": found["equalised", "int8-naive"],
        },
    ),
):
    mended = [f"{points_lost(row)} ({remedy})" for remedy, row in remedies.items()]
    lost.append((name, points_lost(without), ", ".join(mended)))
print(f"{'points lost in INT8':28}{'without':>10}  with a remedy")
for name, without, mended in lost:
    print(f"{name:28}{without:>10}  {mended}")

# %% [markdown]
# The wiki's are per cent of a score, ours points of accuracy on the sample's 1,000 test
# images, where one image is 0.10: differences of a few tenths mean nothing. On the
# 10,000 real test images of the `book` preset calibrated INT8 loses nothing that could
# be told from noise; with the outlier it loses 3.4 points, less with "entropy", and
# none when equalised ([all rows](../figures/README.md)).
#
# ## All precisions, measured
#
# On Fashion-MNIST, also with one scale per channel: a figure of accuracy against speed,
# and `...-results.txt`. One device is measured; with `--num-devices 1,2` each device
# gets a network of its own.

# %%
if __name__ == "__main__":
    runs = chapter.measure("low_precision", num_devices=1)

# %% [markdown]
# **What you see.** The rows differ in images per second, and hardly in accuracy:
# compare two precisions only if their quartiles lie apart. A row without numbers is one
# that MXNet cannot do here, and says why.
#
# On an H200 float16 computes 762,566 images/s and float32 853,966: for LeNet, whose
# operators are short, the casts cost more than half the bytes save
# ([table](../figures/h200/low_precision/book-results.txt)). INT8 does not run there at
# all: MXNet's convolution in INT8 needs a multiple of four channels on GPUs, and
# LeNet's images have one.
#
# ## Summary
#
# > **Takeaway.** Step = largest / 127: an outlier of 128 times the rest leaves the rest
# > one step. On 10,000 images INT8 then lost 3.4 points of accuracy, and none when
# > equalised ([all rows](../figures/README.md)).
#
# - bfloat16 keeps the range and 8 significant bits (the first is always 1 and is not
#   stored); it needs no calibration. INT8 keeps 256 steps between two limits, and
#   everything depends on the limits.
# - Calibration finds them beforehand. That is most of the speed; without it every batch
#   is searched.
# - One outlier takes up the steps of its whole tensor. Cut it off, or better remove it.
# - Report the cost of a precision as accuracy points lost relative to float32, with and
#   without the remedy.
#
# ## Exercises
#
# 1. **Fewer bits.** Give `to_int8` 2^(bits - 1) - 1 steps (2^bits - 1 where nothing is
#    negative) for 8 down to 2 bits. *(The agreement with float32 hardly
#    falls down to 6 bits, by some per cent at 4, by a fifth at 3, and at 2 bits little
#    is left.)*
# 2. *On paper.* LeNet's 129,068 parameters: how many bytes in float32, bfloat16, INT8?
#    Why does a file in INT8 have a few more? *(516,272, 258,136 and 129,068. The biases
#    stay in float32 or INT32, and each tensor has a scale.)*
# 3. *On paper.* A tensor's largest number is 6.35. What becomes of 0.02 and of 0.03 in
#    INT8 with a sign? *(The step is `6.35 / 127 = 0.05`: 0.02 becomes 0, and 0.03
#    becomes 0.05.)*
# 4. **How much calibration?** Take 1, 10, 50 and 400 images. *(One image sets
#    the limit of the last layer too low, and yet nearly all classes agree: few numbers
#    are larger.)*
# 5. **How far may one cut?** Clip the second limit of the stretched network to 0.9,
#    0.7, 0.5, 0.3, 0.1, 0.01 and 0.001 of it. *(About 0.7 is best. Somewhere near
#    0.3 it is as good as no cut, and below that the stretched channel itself is lost.)*
# 6. **How large an outlier?** Stretch by 1, 4, 16, 64, 128 and 512. *(The
#    agreement falls with every step: each factor of 2 takes a bit from all other
#    channels, until none is left.)*
