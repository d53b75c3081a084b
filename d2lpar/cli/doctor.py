"""Whether training can run here; docs/troubleshooting.md explains the messages."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import NamedTuple

import numpy

from d2lpar import devices, process
from d2lpar.errors import RunError, first_line
from d2lpar.machine.builds import installed_builds
from d2lpar.machine.gpus import cuda_devices, why_no_gpu
from d2lpar.machine.host import omp_threads, usable_cores

SECONDS = 120  # a first import from a cold disk, with several GPUs, takes a while


class Check(NamedTuple):
    """Hold a finding and its remedy; `status` is "ok", "warn" or "fail"."""

    status: str
    name: str
    message: str


def examine() -> list[Check]:
    """Look at the versions, cores and GPUs, and let MXNet train a little."""
    python = platform.python_version()
    cores, threads = usable_cores(), omp_threads() or "not set"
    return [
        Check("ok", "Python", f"{python}, {platform.system()} {platform.machine()}"),
        Check("ok", "NumPy", numpy.__version__),
        Check("ok", "cores", f"{cores} usable, OMP_NUM_THREADS {threads}"),
        *check_gpus(),
        check_training(),
    ]


def check_gpus() -> Iterator[Check]:
    """Yield a check per GPU: whether the installed MXNet can use it."""
    gpus = cuda_devices()
    if not gpus:
        yield Check("ok", "GPU", f"training uses CPU contexts: {why_no_gpu()}")
    refused = devices.why_not_usable(gpus)
    for i, gpu in enumerate(gpus):
        status = "warn" if i in refused else "ok"
        yield Check(status, "GPU", refused.get(i, f"gpu({i}) {gpu.name}"))


def check_training() -> Check:
    """Return whether the installed MXNet trains, tried in a separate process."""
    work = "d2lpar.cli.doctor:train_a_little"
    try:
        trained = process.answer(work, {}, timeout=SECONDS)
    except RunError as error:
        return Check("fail", "training", str(error))
    ((build, version),) = installed_builds().items()
    message = f"{build} {version}: gradients are right on {', '.join(trained)}"
    return Check("ok", "training", message)


def train_a_little() -> list[str]:
    """Compute a gradient on each device that `auto` selects; return their names."""
    from d2lpar._mxnet import autograd, mx, np, npx

    used = devices.parse("auto")
    for device in used:
        try:
            X = np.ones((1, 1, 3, 3), ctx=device)
            w = np.ones((1, 1, 3, 3), ctx=device)
            w.attach_grad()
            with autograd.record():
                y = npx.convolution(X, w, kernel=(3, 3), num_filter=1, no_bias=True)
            y.backward()
            total = float(w.grad.sum())
        except mx.MXNetError as error:
            raise mx.MXNetError(f"{device}: {first_line(error)}") from None
        if total != 9:
            raise RunError(f"{device}: a gradient of nine ones came out as {w.grad}")
    return [str(device) for device in used]
