# %% [markdown]
# # Inference in low precision
#
# Source: the GPU wiki, "Low Precision Inference on GPU"
#
# By the wiki a T4 computes 8.1 TFLOPS in float32 and 130 TOPS in INT8; and BERT loses
# 6.43 % of its score in INT8, or 0.67 % if its activations are kept within 10. Train
# LeNet in float32, lower its precision after training, and measure gain and loss:
#
#     python chapters/low_precision.py --devices auto --num-devices 1
#     d2lpar run low_precision --preset book --num-devices 1 --threads 1

# %%
from d2lpar import chapter, datasets, lenet, lenet_concise, mx
from d2lpar.records.precision_table import table
from d2lpar.studies import low_precision
from d2lpar.studies.equalize_channels import equalize, stretch
from d2lpar.studies.lowering import legacy_semantics, to_symbol_block

data = datasets.load("synthetic", n_train=4_000, n_test=1_000)  # for the cells below
state = lenet.start(seed=0, scale=0.1)  # larger weights, off the plateau at once
recipe = {"global_batch_size": 32, "lr": 0.2, "num_epochs": 3}
*_, last = lenet_concise.train(1, devices="cpu:1", data=data, state=state, **recipe)
print(f"trained in float32: test acc {last.test_acc:.3f}")

# %% [markdown]
# **The symbolic form.** MXNet's quantization is older than its NumPy arrays. Both
# describe a network by the same graph, so it is exported from one and loaded by the
# other, with the same parameters. The scores agree to the bit.

# %%
net = low_precision.gluon_lenet(state.params, mx.cpu())
X = datasets.to_float(data.X_test[:200])
symbol_block = to_symbol_block(net, X[:1], mx.cpu())
with legacy_semantics():
    scores = symbol_block(mx.nd.array(X)).asnumpy()
print("bytes:", low_precision.weight_bytes(symbol_block))
print("same scores:", (scores == net(mx.np.array(X)).asnumpy()).all())

# %% [markdown]
# **Lower precisions.** bfloat16 is float32 without its last 16 bits and needs no
# calibration. INT8 needs the range that its 256 steps cover in each tensor. Calibration
# finds the range beforehand ("naive": from the least to the largest value, "entropy":
# without outliers). Without it MXNet searches every batch, and `_contrib_requantize`
# takes most of the time that INT8 saves. A row says what MXNet cannot do here.

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
# **The loss, and a remedy.** LeNet has narrow ranges and loses little. So give it an
# outlier, as BERT has: scale one channel by 128, and the weights that use it by 1/128.
# In float32 the function stays the same; in INT8 that channel now takes up all the
# steps. Calibration recovers part of the loss. Equalising the channels before
# quantizing recovers all of it, at no cost when the network runs.

# %%
stretched = stretch(state.params, factor=128)
for weights, params in (("stretched", stretched), ("equalised", equalize(stretched))):
    for precision in ("int8-none", "int8-naive", "int8-entropy"):
        row = low_precision.measure(precision, params, task)
        found = row.why_not
        if row.supported:
            found = f"{row.test_acc:.3f}, agrees {row.agreement:.3f}"
        print(f"{weights}, {precision}: {found}")

# %% [markdown]
# **All precisions** on Fashion-MNIST, also with one scale per channel: a figure of
# accuracy against speed, and `...-results.txt`. Each device gets a network of its own.

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
    chapter.measure("low_precision", low_precision.WORKLOAD, PRESETS)
