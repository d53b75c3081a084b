# %% [markdown]
# # Extra: inference in low precision
#
# In the lessons LeNet computed in float32. What does it lose with fewer
# bits? We round it to 8 bits by hand, add an outlier, and remove it again.
#
# ![Above, eight numbers between 0 and 1 on a line with eight codes, one number at each
# code. Below, one number is 8, and the others share the codes 0 and
# 1](../docs/drawings/outlier-steps.svg)
#
# According to a published wiki page on GPUs [1], BERT loses **6.43 %** of its score in
# INT8, and at most 0.67 % if its activations are *clipped*: larger ones are replaced by
# a limit.
#
# Run this extra as a notebook, or as `python chapters/low_precision.py`.

# %%
import numpy

from d2lpar import chapter, datasets, lenet, lenet_concise, np, npx
from d2lpar.records.kinds import PrecisionRecord

data = datasets.load("sample")  # for the cells below
state = lenet.start(seed=0, scale=0.1)
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
    print(
        f"{number:10.4g}  {bits[:16]} {bits[16:]}  ->  {to_bfloat16([number])[0]:.7g}"
    )
chapter.answer("257 in bfloat16", to_bfloat16([257.0])[0])

# %% [markdown]
# With the leading bit, which is not stored, there are 8 significant bits. Above 256
# neighbouring numbers therefore differ by 2. The range is that of float32.
#
# ## INT8: integers with one scale
#
# INT8 has no exponent. All numbers of a tensor share one *step*, and each number is
# rounded to a multiple of it. With a sign the integers run from -127 to 127. Tensors
# without negative entries, such as the output of a ReLU, use 0 to 255.
#
# Each layer of LeNet receives its input and its weights in INT8. The largest magnitudes
# of the inputs are found in advance with some training images, which is called
# *calibration*. A product of integers is exact, so we can round the factors and compute
# in float32.


# %%
def rounded(x, limit):
    most = 255 if x.min() >= 0 else 127
    step = limit / most
    return np.clip(np.round(x / step), -most, most) * step


def lenet_int8(X, params, limits=None):
    """Scores, and the largest number of each layer's input."""
    W1, b1, W2, b2, W3, b3, W4, b4 = (np.array(p) for p in params)
    W1, W2, W3, W4 = (rounded(W, abs(W).max()) for W in (W1, W2, W3, W4))
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
in_float32 = lenet.lenet(X_test, [np.array(p) for p in state.params])
in_float32 = in_float32.asnumpy().argmax(axis=1)


def judged(name, params, limits):
    """Print the accuracy; return the agreement with float32."""
    y = lenet_int8(X_test, params, limits)[0].asnumpy().argmax(axis=1)
    agreement = (y == in_float32).mean()
    print(f"{name:22} test acc {(y == data.y_test).mean():.3f}", end=", ")
    print(f"agrees with float32 in {100 * agreement:.1f} %")
    return agreement


_, limits = lenet_int8(X_calibration, state.params)
print("the largest input of each layer:", numpy.round(limits, 2))
judged("INT8, calibrated", state.params, limits)

# %% [markdown]
# Rounding changes scores a little, so images near a boundary change their class.
#
# ## What an outlier costs
#
# To imitate BERT, we *stretch* one channel of the first convolution by 128, and divide
# the weights that use this channel by 128. In float32 the function stays the same,
# because ReLU and average pooling let a positive factor through. We try two remedies.
# We *clip* the limit of the outlier's tensor. Or we *equalise* the channels: the same
# transformation with such factors that the weights before and after are equally large
# [2].
#
# *Predict before you run*: the other channels keep `255 / 128 = 2` steps. Which limit
# agrees least with float32: 1, 0.7 or 0.1 of the largest number?


# %%
def scaled(params, scale):
    """The same function, with channel c of the first convolution times scale[c]."""
    W1, b1, W2, *rest = params
    W1 = W1 * scale[:, None, None, None]
    return [W1, b1 * scale, W2 / scale[:, None, None], *rest]


used = abs(state.params[2]).max(axis=(0, 2, 3))  # largest weight by input channel
scale = numpy.where(used == used.max(), 128, 1).astype("float32")
stretched = scaled(state.params, scale)
made = abs(stretched[0]).max(axis=(1, 2, 3))
equal = scaled(stretched, numpy.sqrt(abs(stretched[2]).max(axis=(0, 2, 3)) / made))
chapter.predict("limit that agrees least", None)
_, wide = lenet_int8(X_calibration, stretched)
agreements = {}
for part in (1, 0.7, 0.1):
    clipped = [wide[0], part * wide[1], *wide[2:]]
    agreements[part] = judged(f"second limit x {part}", stretched, clipped)
judged("equalised", equal, lenet_int8(X_calibration, equal)[1])
chapter.answer("limit that agrees least", min(agreements, key=agreements.get))
chapter.score()

# %% [markdown]
# A cut trades the error of one channel for the resolution of the other channels. Cut to
# a tenth, the stretched channel loses more than the others gain. Equalising removes the
# outlier.
#
# ## MXNet's own quantization
#
# Our version rounds the numbers but computes in float32, so it shows the loss, not the
# speed. MXNet replaces the operators by integer ones. Its calibration "naive" uses the
# largest number seen, as we do, and "entropy" picks a clipping threshold. Our record is
# of a network trained on all of Fashion-MNIST and tested on 10,000 images.

# %%
record = chapter.record("low_precision/book-1thread-cpu1.jsonl")
for row in record.lines_of(PrecisionRecord):
    if row.supported:
        changed = 10_000 * (1 - row.agreement)
        print(
            f"{row.weights:9} {row.precision:21} accuracy {row.test_acc:.4f}", end=", "
        )
        print(f"{changed:5.0f} images in another class")

# %% [markdown]
# If d images change their class by chance, the number of right images changes by about
# `sqrt(d)`. Read a loss only above twice this number.
#
# Finally, we measure all precisions on this machine. Add `--threads 1`, as in our
# record.

# %%
if __name__ == "__main__":
    runs = chapter.measure("low_precision", num_devices=1)

# %% [markdown]
# ## Summary
#
# > **Takeaway.** The step of a tensor is `largest / 127`, or `largest / 255` if no
# > number is negative. An outlier of k times the rest leaves `127 / k` or `255 / k`
# > steps for the rest.
#
# ## Exercises
#
# 1. Give `rounded` fewer bits, 7 down to 2. At how many bits does the agreement with
#    float32 fall below 0.95? *(Each bit less doubles the rounding error. The agreement
#    falls quickly once the error of a score is similar to the distance of the best two
#    classes.)*
# 2. *On paper.* A tensor's largest magnitude is 6.35. What becomes of 0.02 and of 0.03
#    in INT8 with a sign? *(The step is `6.35 / 127 = 0.05`: 0.02 becomes 0, and 0.03
#    becomes 0.05.)*
# 3. *Open.* Round one layer at a time, to 4 bits. Which layer loses most? An answer
#    counts the images in another class for each layer and three seeds. It names a layer
#    only if it is the worst with every seed.
#
# ## Sources
#
# - [1] The GPU wiki, "Low Precision Inference on GPU",
#   <https://github.com/likejazz/likejazz.github.io>, in Korean
#   (`_wiki/GPU-Data-Science.md`)
# - [2] Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias
#   Correction", <https://arxiv.org/abs/1906.04721>
