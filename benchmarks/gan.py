"""Seconds per full step of the GAN: ours, and the CryptoPunks notebook's PyTorch code.

    D2LPAR_DATA=... python benchmarks/gan.py --rounds 3 --steps 10
    python benchmarks/gan.py --width 64 --batch-size 64 --devices gpu:2 --at-once 20

A step updates both networks on a batch of 1,000 faces; arms that are compared have the
same threads in all. With --width the networks are the wide ones, and PyTorch's have its
own spectral normalisation. A sample is the mean of --at-once steps in a row; the first
three of each process warm up. Writes gan.jsonl, or gan-wide.jsonl, and .png to
runs/benchmarks. Needs `pip install -e '.[cpu,peers]'`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import arms
import numpy

from d2lpar.machine.host import usable_cores

WARM_UP = 3
LR = 1e-4


def timed_steps(
    devices: str,
    num_devices: int,
    batch_size: int,
    steps: int,
    synchronised: bool,
    width: int | None,
    at_once: int,
) -> Iterator[dict]:
    """Time steps on random batches, one line for every `at_once` of them."""
    from d2lpar import devices as contexts_of
    from d2lpar import gan, parallel
    from d2lpar._mxnet import np, npx
    from d2lpar.datasets import punks

    contexts = contexts_of.parse(devices)[:num_devices]
    state = gan.start(0, width, "spectral" if width else "none")
    nets = gan.Nets(state, contexts, LR)
    faces = np.array(punks.load().X, dtype="uint8", ctx=contexts[0])
    rng = numpy.random.default_rng(0)
    for number in range(steps):
        npx.waitall()
        start = time.perf_counter()
        for _ in range(at_once):
            index = rng.integers(len(faces), size=batch_size).astype("int32")
            index = np.array(index, dtype="int32", ctx=contexts[0])
            X = faces.take(index, axis=0, mode="clip").astype("float32") / 255
            z = rng.standard_normal((batch_size, *nets.G.z_shape), dtype="float32")
            shards = parallel.split_batch(X, np.array(z, ctx=contexts[0]), contexts)
            sums = gan.step(*shards, nets, synchronised=synchronised)
        npx.waitall()
        seconds = (time.perf_counter() - start) / at_once
        d_loss = sum(map(float, sums.d_losses)) / (2 * batch_size)
        yield {"step": number + 1, "seconds": seconds, "d_loss": d_loss}


def first_steps(path: str, steps: int = 3, batch_size: int = 64) -> Iterator[dict]:
    """Write our first steps to a file, for the notebook's code to repeat."""
    from d2lpar import devices, gan, parallel
    from d2lpar._mxnet import np
    from d2lpar.datasets import punks

    state, one = gan.start(0), devices.parse("cpu:1")
    start = {
        f"{letter}.{k}": p.copy()
        for letter, params in (("D", state.params_D), ("G", state.params_G))
        for k, p in enumerate(params)
    }
    rng, faces = numpy.random.default_rng(0), punks.load().X
    index = rng.integers(len(faces), size=(steps, batch_size))
    X = faces[index].astype("float32") / 255
    z = rng.standard_normal((steps, batch_size, *gan.Z_SHAPE), dtype="float32")
    nets, d_losses, g_losses = gan.Nets(state, one, LR), [], []
    for X_k, z_k in zip(X, z):
        shards = parallel.split_batch(np.array(X_k), np.array(z_k), one)
        sums = gan.step(*shards, nets)
        d_losses.append(sum(map(float, sums.d_losses)) / (2 * batch_size))
        g_losses.append(sum(map(float, sums.g_losses)) / batch_size)
    numpy.savez(path, X=X, z=z, d_losses=d_losses, g_losses=g_losses, **start)
    yield {"d_losses": d_losses}


def arms_of(args: argparse.Namespace, check: str) -> list[arms.Arm]:
    kind, _, count = args.devices.partition(":")
    n, cores = int(count), usable_cores()
    word = "context" if kind == "cpu" else "GPU"
    sizes = {"batch_size": args.batch_size, "steps": args.steps + WARM_UP}
    sizes.update(width=args.width, at_once=args.at_once)

    def ours(
        name: str, num_devices: int, threads: int, synchronised: bool = False
    ) -> arms.Arm:
        return arms.ours(
            name,
            threads,
            "gan:timed_steps",
            devices=args.devices,
            num_devices=num_devices,
            synchronised=synchronised,
            **sizes,
        )

    def pytorch(name: str, device: str) -> arms.Arm:
        job = {**sizes, "threads": cores, "device": device, "check": check}
        return arms.peer(name, "gan_pytorch.py", job, {"OMP_NUM_THREADS": str(cores)})

    theirs = "PyTorch" if args.width else "CryptoPunks notebook (PyTorch)"
    if kind == "gpu":
        more = [
            ours(f"{n} GPUs", n, 1),
            ours(f"{n} GPUs, synchronised BatchNorm", n, 1, True),
        ]
        return [
            ours("1 GPU", 1, 1),
            *(more if n > 1 else []),
            pytorch(f"{theirs}, 1 GPU", "cuda"),
        ]
    return [
        ours("1 context, 1 thread", 1, 1),
        ours(f"{n} {word}s, 1 thread each", n, 1),
        ours(f"{n} {word}s, synchronised BatchNorm", n, 1, True),
        ours(f"1 context, {cores} threads", 1, cores),
        pytorch(f"{theirs}, {cores} threads", "cpu"),
    ]


def main() -> None:
    parser = arms.parser(__doc__, rounds=3)
    parser.add_argument("--steps", type=int, default=10, help="three more warm up")
    parser.add_argument("--batch-size", type=int, default=1_000)
    parser.add_argument("--width", type=int, help="of the wide networks")
    parser.add_argument("--devices", default=f"cpu:{usable_cores()}")
    parser.add_argument("--at-once", type=int, default=1, help="steps of a sample")
    args = parser.parse_args()
    name = "gan-wide" if args.width else "gan"
    with tempfile.TemporaryDirectory() as folder:
        check = ""
        if args.width is None and args.devices.startswith("cpu"):
            check = str(Path(folder) / "first_steps.npz")
            arms.answer("gan:first_steps", path=check)
        timed = arms_of(args, check)
        lines = arms.measure(timed, args.rounds, WARM_UP)
    work = f"a step of the GAN, {args.batch_size:,} faces"
    if args.width:
        work += f", width {args.width}"
    gpus = arms.gpu_names(args.devices)
    path = args.out / f"{name}.jsonl"
    arms.show(arms.record(path, timed, lines, work=work, on_gpus=gpus))


if __name__ == "__main__":
    main()
