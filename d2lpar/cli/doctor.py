"""Whether training can run on this machine, with a remedy for each finding.

:func:`examine` never raises, whatever is broken: MXNet is tried in a process of its
own, and every package that may be missing is imported by the check that needs it.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

import click

from d2lpar import process
from d2lpar.errors import DataError, DiedError, RunError, first_line
from d2lpar.machine.builds import (
    FROM_SOURCE,
    install_command,
    installed_builds,
    own_library,
)
from d2lpar.text import plain_table

MXNET_VERSION = "1.9.1"
SECONDS = 120  # a first import from a cold disk, with several GPUs, takes a while
# By what MXNet's loader names: libraries that its wheels take from the system and slim
# containers lack, in the packages of Debian and Fedora; and what Python 3.12 lacks.
REMEDIES = {
    "libgomp.so": "apt-get install libgomp1, or dnf install libgomp",
    "libquadmath.so": "apt-get install libquadmath0, or dnf install libquadmath",
    "distutils": "pip install setuptools",
}


@dataclass(frozen=True)
class Check:
    """One finding; `status` is "ok", "warn" or "fail"."""

    name: str
    status: str
    message: str
    remedy: str | None = None


def examine(
    out: str | Path = "runs", data_dir: str | Path | None = None
) -> list[Check]:
    """Check everything that training and its figures need; never raises."""
    checks = {
        "Python": check_python,
        "platform": check_platform,
        "NumPy": check_numpy,
        "MXNet": check_mxnet,
        "cores": check_cores,
        "GPU": check_gpus,
        "data": lambda: check_data(data_dir),
        "figures": lambda: check_figures(out),
    }
    findings: list[Check] = []
    for name, check in checks.items():
        try:
            findings += check()
        except Exception as error:
            # Other checks than MXNet's leave it open whether training can run.
            status = "fail" if name == "MXNet" else "warn"
            cause = shorten(f"{type(error).__name__}: {first_line(error)}", 240)
            remedy = "pip install --force-reinstall d2lpar"
            message = f"cannot be examined: {cause}"
            findings.append(Check(name, status, message, remedy))
    return findings


def can_train(checks: Iterable[Check]) -> bool:
    """Whether no check failed."""
    return all(check.status != "fail" for check in checks)


def print_report(checks: list[Check]) -> None:
    """Print a line for each check, then whether training can run here."""
    rows = []
    for check in checks:
        finding = f"{check.message}; {check.remedy}" if check.remedy else check.message
        rows.append((check.status, check.name, " ".join(finding.split())))
    click.echo(plain_table([], rows, names=3))
    warn = sum(check.status == "warn" for check in checks)
    fail = sum(check.status == "fail" for check in checks)
    can = "can" if can_train(checks) else "cannot"
    click.echo(f"training {can} run here ({warn} warn, {fail} fail)")


def _version(name: str, found: str, is_tried: bool, remedy: str) -> Check:
    if is_tried:
        return Check(name, "ok", found)
    return Check(name, "warn", f"{found}: untested", f"where training fails, {remedy}")


def check_python() -> Iterator[Check]:
    """Python 3.9 to 3.13 have been tried."""
    is_tried = sys.version_info[:2] <= (3, 13)
    yield _version("Python", platform.python_version(), is_tried, "use 3.9 to 3.13")


def check_platform() -> Iterator[Check]:
    """MXNet's wheels are for Linux x86-64, its CPU wheel also for two others."""
    text = f"{platform.system()} {platform.machine()}"
    remedy = "use a Linux x86-64 machine or container, or WSL2 on Windows"
    if text == "Linux x86_64":
        yield Check("platform", "ok", text)
    elif text in ("Linux aarch64", "Darwin x86_64"):
        yield Check("platform", "warn", f"{text}: untested", remedy)
    else:
        message = f"no wheel of MXNet {MXNET_VERSION} for {text}"
        yield Check("platform", "fail", message, remedy)


def check_numpy() -> Iterator[Check]:
    """MXNet was made for NumPy 1; d2lpar puts back the names that NumPy 2 lacks."""
    version = importlib.metadata.version("numpy")
    is_tried = int(version.split(".")[0]) < 3
    yield _version("NumPy", version, is_tried, "pip install 'numpy<3'")


def check_mxnet() -> Iterator[Check]:
    """The installed build, and whether it trains; asked in a separate process."""
    try:
        answer = process.answer("d2lpar.cli.doctor:train_a_little", {}, timeout=SECONDS)
    except RunError as error:
        message = str(error).removesuffix(": d2lpar doctor names the remedy")
        yield Check("MXNet", "fail", shorten(message, 600), _remedy(error))
        return
    ((build, version),) = installed_builds().items()
    features = [name for name in answer["features"] if not name.startswith("CPU_")]
    message = f"{version}, {' '.join([build, *features])}"
    if build == FROM_SOURCE:
        message += f" ({own_library()})"
    is_tried = version == MXNET_VERSION
    yield _version("MXNet", message, is_tried, f"use {MXNET_VERSION}")
    trained = ", ".join(answer["trained"])
    yield Check("training", "ok", f"gradients are right on {trained}")


def _remedy(error: RunError) -> str | None:
    """What to do where MXNet does not load or crashes; our own errors say it."""
    for name, remedy in REMEDIES.items():
        if name in str(error):
            return remedy
    from_mxnet = re.match(r"MXNet: |MXNet cannot be loaded \(", str(error))
    if not from_mxnet and not isinstance(error, DiedError):
        return None
    if own_library():
        return "see docs/installing.md; libraries are found through LD_LIBRARY_PATH"
    build = " ".join(installed_builds())
    return f"pip install --force-reinstall --no-deps {build}=={MXNET_VERSION}"


def train_a_little() -> dict:
    """Compute a gradient on each device that `auto` selects.

    Returns MXNet's "features" and the "trained" devices. Raises :class:`RunError` where
    a gradient is wrong, and what :mod:`d2lpar._mxnet` raises.
    """
    from d2lpar import devices
    from d2lpar._mxnet import autograd, mx, np, npx

    used = devices.parse("auto")
    for device in used:
        X = np.ones((1, 1, 3, 3), ctx=device)
        w = np.ones((1, 1, 3, 3), ctx=device)
        w.attach_grad()
        with autograd.record():
            y = npx.convolution(X, w, kernel=(3, 3), num_filter=1, no_bias=True)
        y.backward()
        if float(w.grad.sum()) != 9:
            raise RunError(f"{device}: a gradient of nine ones came out as {w.grad}")
    features = [name for name, on in mx.runtime.Features().items() if on.enabled]
    return {"features": features, "trained": [str(device) for device in used]}


def check_cores() -> Iterator[Check]:
    """The number of usable cores, and the two variables that can waste them."""
    from d2lpar.machine.host import omp_threads, usable_cores

    cores, threads = usable_cores(), omp_threads()
    copies = os.environ.get("MXNET_CPU_TEMP_COPY", "").strip() or "256"
    if threads is not None and threads > cores:
        message = f"{cores} usable, but OMP_NUM_THREADS={threads}"
        yield Check("cores", "warn", message, "unset OMP_NUM_THREADS")
    elif not (copies.isdigit() and int(copies) >= 64):
        message = f"MXNET_CPU_TEMP_COPY={copies} makes contexts wait for each other"
        yield Check("cores", "warn", message, "unset MXNET_CPU_TEMP_COPY")
    elif threads is None:
        message = f"{cores} usable, shared out among the CPU contexts of a run"
        yield Check("cores", "ok", message)
    else:
        yield Check("cores", "ok", f"{cores} usable, OMP_NUM_THREADS={threads}")


def check_gpus() -> Iterator[Check]:
    """One check per GPU: whether the installed MXNet computes on it."""
    from d2lpar import devices
    from d2lpar.machine.builds import cuda_devices
    from d2lpar.machine.cards import machine

    here, visible = machine(), cuda_devices()
    if not here.gpus:
        yield Check("GPU", "ok", f"training uses CPU contexts: {here.no_gpu}")
    refused = devices.why_not_usable(range(len(visible)), visible)
    cpu_build_only = set(installed_builds()) <= {"mxnet"}
    for gpu in here.gpus:
        name, what = f"GPU {gpu.index}", f"{gpu.label}, driver {gpu.driver or '?'}"
        if gpu.number is None:
            yield Check(name, "warn", what, "unset CUDA_VISIBLE_DEVICES")
        elif gpu.number in refused:
            message, _, remedy = refused[gpu.number].partition("; ")
            yield Check(name, "warn", message, remedy)
        elif cpu_build_only:
            remedy = f"pip uninstall mxnet && {install_command('cu112')}"
            yield Check(name, "warn", f"{what}: needs MXNet's GPU build", remedy)
        else:
            yield Check(name, "ok", what)


def check_data(data_dir: str | Path | None = None) -> Iterator[Check]:
    """Whether Fashion-MNIST is on disk and intact, where a run looks for it."""
    import pooch

    from d2lpar.datasets.download import check_folder
    from d2lpar.datasets.fashion import FASHION_MNIST

    folders = {"--data-dir": data_dir, "D2LPAR_DATA": os.getenv("D2LPAR_DATA")}
    asked_for = [(source, folder) for source, folder in folders.items() if folder]
    try:
        found = [FASHION_MNIST.paths_in(check_folder(*where)) for where in asked_for]
        found.append(FASHION_MNIST.paths_in(pooch.os_cache("d2lpar")))
    except DataError as error:
        message, _, remedy = str(error).partition("; ")
        yield Check("data", "fail", message, remedy or "name another folder")
        return
    if any(found):
        yield Check("data", "ok", "Fashion-MNIST is on disk and intact")
    else:
        message = "the whole of Fashion-MNIST is not on disk; a sample is installed"
        yield Check("data", "warn", message, "the first run downloads it (30 MB)")


def check_figures(out: str | Path) -> Iterator[Check]:
    """Whether files can be written below `out`, by writing and removing one."""
    folder = there = Path(out).absolute()
    # os.access always says yes to root. So write a file, in the folder or, if that does
    # not exist, in the closest parent that does.
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    try:
        with tempfile.TemporaryDirectory(prefix=".d2lpar-", dir=there) as scratch:
            made = Path(scratch, folder.relative_to(there))
            made.mkdir(parents=True, exist_ok=True)
            (made / "figure").write_bytes(b"figure")
    except OSError as error:
        message = f"{folder} cannot be written ({error.strerror} at {there})"
        yield Check("figures", "fail", message, "name another folder with --out")
    else:
        yield Check("figures", "ok", f"{folder} can be written")
