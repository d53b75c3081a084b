"""Seconds of one full step of the GAN, ours and the seed's PyTorch, in one sitting.

    D2LPAR_DATA=... python benchmarks/gan.py --rounds 3 --steps 10

Updates of both networks on a batch of 1,000 faces, the two arms that are compared with
the same threads in all. The first three steps of each process warm up and do not count.
Writes gan.jsonl (a header with provenance, then a line a step), gan.png and .svg to
figures/benchmarks. Needs PyTorch for its arm (pip install 'd2lpar[cpu,peers]').
"""

import argparse
import tempfile
from pathlib import Path

from d2lpar.figures import bars
from d2lpar.machine import cores as machine_cores
from d2lpar.runs import in_turn

OURS = """
import json, sys, time
import numpy
from d2lpar import gan, parallel
from d2lpar.datasets import punks
from d2lpar import devices as d
from d2lpar._mxnet import np, npx
batch_size, steps = int(sys.argv[1]), int(sys.argv[2])
devices = d.parse("cpu:{n}")
nets = gan.Nets(gan.start(0), devices, 1e-4)
faces = np.array(punks.load().X, dtype="uint8", ctx=devices[0])
rng = numpy.random.default_rng(0)
for number in range(steps):
    npx.waitall()
    start = time.perf_counter()
    index = np.array(rng.integers(len(faces), size=batch_size), dtype="int32")
    X = faces.take(index, axis=0, mode="clip").astype("float32") / 255
    z = np.array(rng.standard_normal((batch_size, 16, 3, 3), dtype="float32"))
    shards = parallel.split_batch(X, z, devices)
    found = gan.step(*shards, nets, synchronised={synchronised})
    npx.waitall()
    seconds = time.perf_counter() - start
    d_loss = sum(float(l) for l in found[0]) / (2 * batch_size)
    print(json.dumps(dict(step=number + 1, seconds=seconds, d_loss=d_loss)), flush=True)
"""
# The seed's code is held to our losses in these steps before it is timed.
FIRST_STEPS = """
import sys
import numpy
from d2lpar import devices, gan, parallel
from d2lpar.datasets import punks
from d2lpar._mxnet import np
state, one = gan.start(0), devices.parse("cpu:1")
found = {f"{letter}.{k}": p for letter in "DG"
         for k, p in enumerate(getattr(state, f"params_{letter}"))}
rng, faces = numpy.random.default_rng(0), punks.load().X
X = faces[rng.integers(len(faces), size=(3, 64))].astype("float32") / 255
z = rng.standard_normal((3, 64, 16, 3, 3), dtype="float32")
nets = gan.Nets(state, one, 1e-4)
d_losses, g_losses = [], []
for X_k, z_k in zip(X, z):
    shards = parallel.split_batch(np.array(X_k), np.array(z_k), one)
    d, g, _ = gan.step(*shards, nets)
    d_losses.append(sum(map(float, d)) / (2 * 64))
    g_losses.append(sum(map(float, g)) / 64)
numpy.savez(sys.argv[1], X=X, z=z, d_losses=d_losses, g_losses=g_losses, **found)
"""
WARM_UP = 3


def arms(
    cores: int, batch_size: int, steps: int, check: Path
) -> dict[str, in_turn.Arm]:
    def ours(n: int, threads: int, synchronised: bool = False) -> in_turn.Arm:
        code = OURS.format(n=n, synchronised=synchronised)
        return in_turn.ours(code, threads, batch_size, steps)

    flags = f"--batch-size={batch_size}", f"--steps={steps}"
    return {
        "1 context, 1 thread": ours(1, 1),
        f"{cores} contexts, 1 thread each": ours(cores, 1),
        f"{cores} contexts, synchronised BatchNorm": ours(cores, 1, True),
        f"1 context, {cores} threads": ours(1, cores),
        f"the seed's code (PyTorch), {cores} threads": in_turn.peer(
            "gan_pytorch.py", f"--threads={cores}", f"--check={check}", *flags
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="three more warm up")
    parser.add_argument("--batch-size", type=int, default=1_000)
    parser.add_argument("--out", type=Path, default=Path("figures/benchmarks"))
    args = parser.parse_args()

    header = in_turn.header("gan", f"a step of the GAN, {args.batch_size} faces")
    with tempfile.TemporaryDirectory() as folder:
        check = Path(folder) / "first_steps.npz"
        _, problem = in_turn.run(in_turn.ours(FIRST_STEPS, 1, check))
        if problem:
            raise SystemExit(f"our first steps: {problem}")
        steps = args.steps + WARM_UP
        every = arms(machine_cores.usable_cores(), args.batch_size, steps, check)
        measured = in_turn.measure(every, args.rounds, WARM_UP)
    bars.report(header, every, *measured, args.out)


if __name__ == "__main__":
    main()
