"""Seconds per full step of the GAN: ours, and the CryptoPunks notebook's PyTorch code.

    D2LPAR_DATA=... python benchmarks/gan.py --rounds 3 --steps 10

A step updates both networks on a batch of 1,000 faces; arms that are compared have the
same threads in all. The first three steps of each process warm up. Writes gan.jsonl,
.png and .svg to runs/benchmarks. Needs `pip install 'd2lpar[cpu,peers]'`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy

from d2lpar import process
from d2lpar.figures import bars
from d2lpar.machine.host import usable_cores
from d2lpar.records import arms
from d2lpar.runs import in_turn

WARM_UP = 3
LR = 1e-4


def timed_steps(
    num_devices: int, batch_size: int, steps: int, synchronised: bool
) -> Iterator[dict]:
    """Time steps on random batches, one line each."""
    from d2lpar import devices, gan, parallel
    from d2lpar._mxnet import np, npx
    from d2lpar.datasets import punks

    contexts = devices.parse(f"cpu:{num_devices}")
    nets = gan.Nets(gan.start(0), contexts, LR)
    faces = np.array(punks.load().X, dtype="uint8", ctx=contexts[0])
    rng = numpy.random.default_rng(0)
    for number in range(steps):
        npx.waitall()
        start = time.perf_counter()
        index = np.array(rng.integers(len(faces), size=batch_size), dtype="int32")
        X = faces.take(index, axis=0, mode="clip").astype("float32") / 255
        z = np.array(rng.standard_normal((batch_size, *gan.Z_SHAPE), dtype="float32"))
        shards = parallel.split_batch(X, z, contexts)
        sums = gan.step(*shards, nets, synchronised=synchronised)
        npx.waitall()
        seconds = time.perf_counter() - start
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


def arms_of(cores: int, batch_size: int, steps: int, check: str) -> list[in_turn.Arm]:
    sizes = {"batch_size": batch_size, "steps": steps}

    def ours(
        name: str, num_devices: int, threads: int, synchronised: bool = False
    ) -> in_turn.Arm:
        return in_turn.ours(
            name,
            threads,
            f"{__file__}:timed_steps",
            num_devices=num_devices,
            synchronised=synchronised,
            **sizes,
        )

    return [
        ours("1 context, 1 thread", 1, 1),
        ours(f"{cores} contexts, 1 thread each", cores, 1),
        ours(f"{cores} contexts, synchronised BatchNorm", cores, 1, True),
        ours(f"1 context, {cores} threads", 1, cores),
        in_turn.peer(
            f"CryptoPunks notebook (PyTorch), {cores} threads",
            "gan_pytorch.py",
            {"threads": cores, "check": check, **sizes},
            {"OMP_NUM_THREADS": str(cores)},
        ),
    ]


def main() -> None:
    parser = in_turn.parser(__doc__, rounds=3)
    parser.add_argument("--steps", type=int, default=10, help="three more warm up")
    parser.add_argument("--batch-size", type=int, default=1_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        check = str(Path(folder) / "first_steps.npz")
        process.answer(f"{__file__}:first_steps", {"path": check})
        steps = args.steps + WARM_UP
        timed = arms_of(usable_cores(), args.batch_size, steps, check)
        lines = in_turn.measure(timed, args.rounds, WARM_UP)
    work = f"a step of the GAN, {args.batch_size:,} faces"
    run = in_turn.record(args.out / "gan.jsonl", timed, lines, work=work)
    print(arms.table(run))
    bars.draw([run], args.out, "gan")


if __name__ == "__main__":
    main()
