"""Why is LeNet no faster? Its layers one by one, in MXNet and in PyTorch.

    python benchmarks/layers.py --rounds 3

Forward and backward of each layer with parameters, 256 images, float32, one thread, in
fresh processes in turn. Beside the milliseconds stands what share they are of the
matrix peak: the fastest np.dot of 1,024 x 1,024 found here. Writes layers.jsonl, .png
and .svg to figures/benchmarks. PyTorch's arms need `pip install -e '.[cpu,peers]'`.
"""

import argparse
import statistics
import sys
from pathlib import Path

from d2lpar.figures import bars
from d2lpar.runs import in_turn

BATCH = 256
# Shapes of the input and of the weight, and FLOP of the forward pass for one image.
LAYERS = {
    "conv 1 to 20, 3 x 3": ((1, 28, 28), (20, 1, 3, 3), 2 * 20 * 9 * 26 * 26),
    "conv 20 to 50, 5 x 5": ((20, 13, 13), (50, 20, 5, 5), 2 * 50 * 20 * 25 * 9 * 9),
    "dense 800 to 128": ((800,), (128, 800), 2 * 800 * 128),
}
TIMED = """
import json, time
def timed(forward, backward, wait):
    for number in range(13):
        wait()
        begin = time.perf_counter()
        out = forward()
        wait()
        between = time.perf_counter()
        backward(out)
        wait()
        end = time.perf_counter()
        print(json.dumps(dict(seconds=end - begin, forward=between - begin)))
"""
MXNET = """
from d2lpar._mxnet import np, npx, autograd
X, W = np.random.uniform(size={x}), np.random.uniform(size={w}) * 0.01
b = np.zeros({w}[0])
for array in ([W, b] if {first} else [X, W, b]):
    array.attach_grad()
def forward():
    with autograd.record():
        if len({w}) == 4:
            return npx.convolution(X, W, b, kernel={w}[2:], num_filter={w}[0])
        return npx.fully_connected(X, W, b, num_hidden={w}[0])
timed(forward, lambda out: out.backward(), npx.waitall)
"""
PYTORCH = """
import torch
torch.set_num_threads(1)
X, W = torch.rand({x}), torch.rand({w}) * 0.01
if {last} and len({w}) == 4:
    X, W = (a.to(memory_format=torch.channels_last) for a in (X, W))
X.requires_grad_(not {first})
W.requires_grad_()
b = torch.zeros({w}[0], requires_grad=True)
layer = torch.nn.functional.conv2d if len({w}) == 4 else torch.nn.functional.linear
def backward(out):
    for array in (X, W, b):
        array.grad = None
    out.backward(torch.ones_like(out))
timed(lambda: layer(X, W, b), backward, lambda: None)
"""
PEAK = """
import json, time
from d2lpar._mxnet import np, npx
a = np.random.uniform(size=(1024, 1024))
for _ in range(13):
    npx.waitall()
    begin = time.perf_counter()
    np.dot(a, a)
    npx.waitall()
    print(json.dumps(dict(seconds=time.perf_counter() - begin)))
"""


def arms() -> dict[str, in_turn.Arm]:
    every = {"np.dot, 1,024 x 1,024": in_turn.ours(PEAK, 1)}
    for layer, (x, w, _) in LAYERS.items():
        known = {"x": (BATCH, *x), "w": w, "first": layer.startswith("conv 1 ")}
        every[f"{layer}: MXNet"] = in_turn.ours(TIMED + MXNET.format(**known), 1)
        for last in (False, True) if len(w) == 4 else (False,):
            code = TIMED + PYTORCH.format(**known, last=last)
            name = f"{layer}: PyTorch{', channels last' * last}"
            command = [sys.executable, "-c", code]
            every[name] = in_turn.Arm(command, {"OMP_NUM_THREADS": "1"}, True)
    return every


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("figures/benchmarks"))
    args = parser.parse_args()

    every = arms()
    work = f"a layer of LeNet, forward and backward, {BATCH} images, one thread"
    lines, seconds = in_turn.measure(every, args.rounds, warm_up=3)
    bars.report(in_turn.header("layers", work), every, lines, seconds, args.out)
    peak = 2 * 1024**3 / min(seconds["np.dot, 1,024 x 1,024"])
    print(f"matrix peak, one thread: {peak / 1e9:.0f} GFLOP/s")
    for name in every:
        layer = name.partition(":")[0]
        if layer in LAYERS and name in seconds:
            passes = 2 if layer.startswith("conv 1 ") else 3  # no gradient of images
            flop = passes * BATCH * LAYERS[layer][2]
            share = flop / statistics.median(seconds[name]) / peak
            print(f"{name:48} {100 * share:.0f} % of the peak")


if __name__ == "__main__":
    main()
