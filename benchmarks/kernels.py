"""Seconds of y = 2 x and of SGD's update: kernel, MXNet, NumPy, a loop in C.

    python benchmarks/kernels.py --rounds 3
    python benchmarks/kernels.py --devices gpu:1

Each arrangement of contexts and threads is measured in a fresh process, round after
round; within it the ways take turns, and every answer is compared with NumPy's. Writes
kernels.jsonl and .png to runs/benchmarks, and prints the seconds.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import arms
import numpy

from d2lpar.errors import RunError
from d2lpar.machine.host import omp_threads, usable_cores
from d2lpar.text import plural

WORKS = {"x2": "y = 2 x", "update": "p -= step * grad"}
WAYS = ("loop in C", "kernel", "MXNet", "NumPy")
LR, BATCH_SIZE = 0.2, 256

_LOOPS = """\
extern "C" void x2(const float *__restrict__ x, float *__restrict__ y, long n) {
  for (long i = 0; i < n; ++i) y[i] = 2 * x[i];
}
extern "C" void update(const float *__restrict__ g, float *__restrict__ p, long n) {
  const float step = STEP;
  for (long i = 0; i < n; ++i) p[i] -= step * g[i];
}
"""


def timed_ways(arrangement: str, chosen: str, n: int, repeats: int) -> Iterator[dict]:
    """Time both works in every way, one line per sample."""
    from d2lpar import devices

    timed = times(devices.parse(chosen), n, repeats)
    for work, words in WORKS.items():
        for way in WAYS:
            for seconds in timed.get((work, way), []):
                name = f"{way}, {arrangement}"
                yield {"work": words, "arm": name, "seconds": seconds}


def times(
    devices: Sequence, n: int, repeats: int = 7
) -> dict[tuple[str, str], list[float]]:
    """Seconds by operation and library: `repeats` samples, n float32 per device.

    The libraries take turns, and all compute as many numbers, NumPy with its one
    thread. An untimed call precedes each sample, so that none pays for the memory that
    another gives back. The loop in C exists on CPU contexts only. Raises
    :class:`RunError` when an answer is not NumPy's.
    """
    from d2lpar._mxnet import np, npx
    from d2lpar.kernels import ElementwiseKernel, fused_sgd
    from d2lpar.parallel import get_params, sgd

    host = numpy.random.default_rng(0).random(n, dtype="float32")
    host_ys, two = [numpy.zeros(n, "float32") for _ in devices], numpy.float32(2)
    pairs = [(np.array(host, ctx=d), np.zeros(n, ctx=d)) for d in devices]
    replicas = [get_params([host], device) for device in devices]
    for (p,), (x, _) in zip(replicas, pairs):
        p.grad[:] = x
    x2 = ElementwiseKernel("const float *x, float *y", "y[i] = 2 * x[i]", "x2")
    calls: dict[tuple[str, str], Callable[[], object]] = {
        ("x2", "kernel"): lambda: [x2(x, y) for x, y in pairs],
        ("x2", "MXNet"): lambda: [np.multiply(x, 2, out=y) for x, y in pairs],
        ("x2", "NumPy"): lambda: [numpy.multiply(host, two, out=y) for y in host_ys],
        ("update", "kernel"): lambda: [
            fused_sgd(params, LR, BATCH_SIZE) for params in replicas
        ],
        ("update", "MXNet"): lambda: [
            sgd(params, LR, BATCH_SIZE) for params in replicas
        ],
    }
    if devices[0].device_type == "cpu":
        gradients = [(p.grad, p) for (p,) in replicas]
        calls |= _loops_in_c({"x2": pairs, "update": gradients})
    for (operation, library), call in calls.items():
        for (_, y), (p,) in zip(pairs, replicas):
            y[:] = 0
            p[:] = host
        npx.waitall()
        call()
        npx.waitall()
        outputs, expected = [y for _, y in pairs], 2 * host
        if operation == "update":
            outputs = [p for (p,) in replicas]
            expected = host - numpy.float32(LR / BATCH_SIZE) * host
        for array, device in zip(host_ys if library == "NumPy" else outputs, devices):
            found = array if library == "NumPy" else array.asnumpy()
            if not (found == expected).all():
                raise RunError(
                    f"{operation} by {library} on {device} differs from NumPy"
                )
    samples: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    for _ in range(repeats):
        for key, call in calls.items():
            call()
            npx.waitall()
            start = time.perf_counter()
            call()
            npx.waitall()
            samples[key].append(time.perf_counter() - start)
    return samples


def address(array) -> int:
    """Where the elements of an array of a CPU context begin."""
    from d2lpar._mxnet import mx

    array.wait_to_read()
    pointer = ctypes.c_void_p()
    # If oneDNN keeps the array in its own layout, this first puts it in order.
    mx.base.check_call(
        mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer))
    )
    return pointer.value or 0


def _loops_in_c(
    arrays: dict[str, list[tuple]],
) -> dict[tuple[str, str], Callable[[], object]]:
    """The loops, compiled as the kernels are; `arrays` has what each reads, writes.

    They have as many threads as all contexts together; each works on an even share.
    """
    from d2lpar.kernels import on_cpu
    from d2lpar.parallel import shares

    command = on_cpu.compiler()
    if platform.machine() == "x86_64":
        # On a Zen 4, 512-bit stores made the loop slower, not the kernel: a limit
        # should be the best possible.
        command = [*command, "-mprefer-vector-width=256"]
    with tempfile.TemporaryDirectory(prefix="d2lpar-") as folder:
        library = Path(folder, "loops.so")
        text = _LOOPS.replace("STEP", f"{LR / BATCH_SIZE!r}")
        on_cpu.compile_cpp(text, "loops", command, library)
        loops = ctypes.CDLL(str(library))
    threads = omp_threads() or 1
    pool = ThreadPoolExecutor(threads * len(arrays["x2"]))

    def call(loop: Callable, pairs: list[tuple]) -> Callable[[], object]:
        parts = [
            (
                ctypes.c_void_p(address(source) + 4 * share.start),
                ctypes.c_void_p(address(target) + 4 * share.start),
                ctypes.c_long(share.stop - share.start),
            )
            for source, target in pairs
            for share in shares(source.size, threads)
        ]
        return lambda: list(pool.map(lambda part: loop(*part), parts))

    return {
        (operation, "loop in C"): call(getattr(loops, operation), pairs)
        for operation, pairs in arrays.items()
    }


def main() -> None:
    parser = arms.parser(__doc__, rounds=3)
    parser.add_argument("--repeats", type=int, default=7, help="samples per round")
    parser.add_argument(
        "-n", type=int, default=50_000_000, help="float32 values on each context"
    )
    parser.add_argument("--devices", help="such as gpu:1; CPU contexts without it")
    args = parser.parse_args()

    from d2lpar.kernels.on_cpu import FLAGS, compiler

    cores, timed = usable_cores(), []
    arrangements = {}  # by name: devices, threads of each
    for n, threads in dict.fromkeys([(1, 1), (1, cores), (cores, 1)]):
        each = " each" if n > 1 else ""
        name = f"{plural(n, 'context')}, {plural(threads, 'thread')}{each}"
        arrangements[name] = f"cpu:{n}", threads
    gpus = arms.gpu_names(args.devices or "cpu:1")
    if gpus:
        arrangements = {plural(len(gpus), "GPU"): (args.devices, 1)}
    for name, (chosen, threads) in arrangements.items():
        timed.append(
            arms.ours(
                name,
                threads,
                "kernels:timed_ways",
                arrangement=name,
                chosen=chosen,
                n=args.n,
                repeats=args.repeats,
            )
        )
    lines = arms.measure(timed, args.rounds, warm_up=0)
    command = shlex.join([*map(os.path.basename, compiler()), *FLAGS])
    note = (
        "The loop in C has as many threads as the kernel; NumPy has one, for the "
        "numbers of all contexts. The update is "
        f"one pass in the kernel, two operators in MXNet. Compiler: {command}."
    )
    words = {"work": f"{args.n:,} float32 on each device", "note": note}
    path = args.out / "kernels.jsonl"
    arms.show(arms.record(path, timed, lines, on_gpus=gpus, **words))


if __name__ == "__main__":
    main()
