"""Why is LeNet no faster? Its layers one by one, in MXNet and in PyTorch.

    python benchmarks/layers.py --rounds 3

Forward and backward of each layer with parameters, 256 images, float32, one thread, in
fresh processes in turn. Prints which share of the matrix peak each reaches: the fastest
np.dot of 1,024 x 1,024 measured here. Writes layers.jsonl and .png to
runs/benchmarks. PyTorch's arms need `pip install -e '.[cpu,peers]'`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import arms

BATCH = 256
FIRST = "conv 1 to 20, 3 x 3"  # needs no gradient of the images
# Shapes of the input and of the weight, and FLOP of the forward pass for one image.
LAYERS = {
    FIRST: ((1, 28, 28), (20, 1, 3, 3), 2 * 20 * 9 * 26 * 26),
    "conv 20 to 50, 5 x 5": ((20, 13, 13), (50, 20, 5, 5), 2 * 50 * 20 * 25 * 9 * 9),
    "dense 800 to 128": ((800,), (128, 800), 2 * 800 * 128),
}
PEAK, SIZE = "np.dot, 1,024 x 1,024", 1_024
WARM_UP, STEPS = 3, 13


def timed(forward: Callable, backward: Callable, wait: Callable) -> Iterator[dict]:
    for _ in range(STEPS):
        wait()
        begin = time.perf_counter()
        out = forward()
        wait()
        between = time.perf_counter()
        backward(out)
        wait()
        end = time.perf_counter()
        yield {"seconds": end - begin, "forward": between - begin}


def in_mxnet(layer: str) -> Iterator[dict]:
    from d2lpar._mxnet import autograd, np, npx

    x, w, _ = LAYERS[layer]
    X = np.random.uniform(size=(BATCH, *x))
    W, b = np.random.uniform(size=w) * 0.01, np.zeros(w[0])
    for array in [W, b] if layer == FIRST else [X, W, b]:
        array.attach_grad()

    def forward():
        with autograd.record():
            if len(w) == 4:
                return npx.convolution(X, W, b, kernel=w[2:], num_filter=w[0])
            return npx.fully_connected(X, W, b, num_hidden=w[0])

    return timed(forward, lambda out: out.backward(), npx.waitall)


def in_pytorch(layer: str, channels_last: bool) -> Iterator[dict]:
    import torch

    torch.set_num_threads(1)
    x, w, _ = LAYERS[layer]
    X, W = torch.rand(BATCH, *x), torch.rand(w) * 0.01
    if channels_last:
        X, W = (a.to(memory_format=torch.channels_last) for a in (X, W))
    X.requires_grad_(layer != FIRST)
    W.requires_grad_()
    b = torch.zeros(w[0], requires_grad=True)
    functional = torch.nn.functional
    operator = functional.conv2d if len(w) == 4 else functional.linear

    def backward(out):
        for array in (X, W, b):
            array.grad = None
        out.backward(torch.ones_like(out))

    return timed(lambda: operator(X, W, b), backward, lambda: None)


def matrix_peak() -> Iterator[dict]:
    from d2lpar._mxnet import np, npx

    a = np.random.uniform(size=(SIZE, SIZE))
    for _ in range(STEPS):
        npx.waitall()
        begin = time.perf_counter()
        np.dot(a, a)
        npx.waitall()
        yield {"seconds": time.perf_counter() - begin}


def arms_of() -> Iterator[arms.Arm]:
    yield arms.ours("MXNet", 1, "layers:matrix_peak", work=PEAK)
    for layer, (_, w, _) in LAYERS.items():
        yield arms.ours("MXNet", 1, "layers:in_mxnet", work=layer, layer=layer)
        for last in (False, True) if len(w) == 4 else (False,):
            yield arms.Arm(
                "PyTorch, channels last" if last else "PyTorch",
                "layers:in_pytorch",
                {"layer": layer, "channels_last": last},
                {"OMP_NUM_THREADS": "1"},
                is_peer=True,
                work=layer,
            )


def main() -> None:
    args = arms.parser(__doc__, rounds=3).parse_args()
    every = list(arms_of())
    work = f"forward and backward of a layer of LeNet, {BATCH} images, one thread"
    lines = arms.measure(every, args.rounds, WARM_UP)
    run = arms.record(args.out / "layers.jsonl", every, lines, work=work)
    arms.show(run)
    peak, *layers = [arm for arm in arms.arm_times(run) if arm.seconds]
    flops = 2 * SIZE**3 / min(peak.seconds)
    print(f"matrix peak, one thread: {flops / 1e9:.0f} GFLOP/s")
    for arm in layers:
        passes = 2 if arm.work == FIRST else 3
        flop = passes * BATCH * LAYERS[arm.work][2]
        share = flop / statistics.median(arm.seconds) / flops
        print(f"{arm.work}, {arm.name}: {share:.0%} of the peak")


if __name__ == "__main__":
    main()
