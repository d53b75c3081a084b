# %% [markdown]
# # Inference in low precision
#
# Seed: "Low Precision Inference on GPU", in Korean (002)
#
# A T4 computes 8.1 TFLOPS in float32 and 130 TOPS in INT8, says the seed; and BERT
# loses 6.43 % of its score in INT8, until its activations are kept within 10: then
# 0.67 %. Train LeNet in float32, lower its precision after training, and measure what
# is won and what is lost:
#
#     python chapters/low_precision.py --devices auto --num-devices 1
#     d2lpar run low_precision --preset book --num-devices 1 --threads 1

# %%
from d2lpar import chapter, datasets, lenet, lenet_concise
from d2lpar._mxnet import mx
from d2lpar.records.precision_table import table
from d2lpar.studies import low_precision
from d2lpar.studies.equalize_channels import equalize, stretch
from d2lpar.studies.gluon_to_symbol import legacy_semantics, to_symbol_block

data = datasets.load("synthetic", n_train=4_000, n_test=1_000)  # for the cells below
state = lenet.start(seed=0, scale=0.1)  # larger weights, off the plateau at once
recipe = {"global_batch_size": 32, "lr": 0.2, "num_epochs": 3}
*_, last = lenet_concise.train(1, devices="cpu:1", data=data, state=state, **recipe)
print(f"trained in float32: test acc {last.test_acc:.3f}")

# %% [markdown]
# **The symbolic form.** MXNet's quantization is older than its NumPy arrays. The graph
# of the network is the same in both worlds, so it is exported from one and loaded in
# the other, with the same parameters: the scores agree to the bit.

# %%
net = low_precision.gluon_lenet(state.params, mx.cpu())
X = datasets.to_float(data.X_test[:200])
symbol_block = to_symbol_block(net, X[:1], mx.cpu())
with legacy_semantics():
    scores = symbol_block(mx.nd.array(X)).asnumpy()
print("bytes:", low_precision.weight_bytes(symbol_block))
print("same scores:", (scores == net(mx.np.array(X)).asnumpy()).all())

# %% [markdown]
# **Lower it.** bfloat16 is float32 without the last 16 bits: nothing to calibrate. INT8
# needs to know what its 256 steps stand for in each tensor. Calibrated ("naive": least
# and largest value, "entropy": outliers cut off), that is known beforehand; without,
# every batch is searched for it: `_contrib_requantize` takes most of what was won.
# What MXNet cannot do here says so in its row.

# %%
task = low_precision.Task(
    X=data.X_test,
    y=data.y_test,
    y_float32=low_precision.predictions(state.params, data.X_test, mx.cpu()),
    X_calibration=data.X_train[:400],
    devices=[mx.cpu()],
    batch_size=200,
    repeats=5,
)
names = ("float32", "bfloat16", "float16", "int8-none", "int8-naive", "int8-entropy")
print(table(low_precision.measure(p, state.params, task) for p in names))

# %% [markdown]
# **The loss, and how to win it back.** LeNet has little to lose: its ranges are narrow.
# So give it what BERT has, an outlier: one channel 128 times as large, and its use 128
# times as small. In float32 that is the same function; in INT8 one channel now takes
# all the steps. Calibration saves part of it. Evening the channels out before
# quantizing saves all, and costs nothing when the network runs.

# %%
stretched = stretch(state.params, factor=128)
for weights, params in (("stretched", stretched), ("equalised", equalize(stretched))):
    for precision in ("int8-none", "int8-naive", "int8-entropy"):
        row = low_precision.measure(precision, params, task)
        print(f"{weights}, {precision}: {row.test_acc:.3f}, agrees {row.agreement:.3f}")

# %% [markdown]
# **All of them** on Fashion-MNIST, with scales by channel too: a picture of accuracy
# against speed, and `...-results.txt`. `--num-devices 2` gives every device a network.

# %%
PRESETS = {
    "quick": {
        "num_epochs": 4,
        "global_batch_size": 64,
        "lr": 0.2,
        "repeats": 7,
        "data": {"n_train": 12_000, "n_test": 2_000},
    },
    "book": {"num_epochs": 10, "global_batch_size": 256, "lr": 0.2, "repeats": 15},
    "dry-run": {
        "num_epochs": 1,
        "repeats": 1,
        "data": {"n_train": 1000, "n_test": 200},
    },
}

if __name__ == "__main__":
    chapter.measure("low_precision", "d2lpar.studies.low_precision:train", PRESETS)
