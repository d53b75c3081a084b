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

from d2lpar import process
from d2lpar.errors import D2lparError, DataError, RunError, first_line
from d2lpar.machine.mxnet_builds import (
    FROM_SOURCE,
    install_command,
    installed_builds,
    missing_libraries,
    own_library,
)

CPU, GPU = install_command("cpu"), install_command("cu112")
SECONDS = 120  # a first import from a cold disk, with several GPUs, takes a while
STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
# Libraries that MXNet's wheels take from the system and that slim containers lack, with
# the packages of Debian and Fedora that provide them.
SYSTEM_LIBRARIES = {
    "libgomp.so.1": "apt-get install libgomp1, or dnf install libgomp",
    "libquadmath.so.0": "apt-get install libquadmath0, or dnf install libquadmath",
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
            remedy = "pip install --force-reinstall d2lpar"
            if isinstance(error, FileNotFoundError):  # the working directory is gone
                remedy = "change to a folder that exists"
            # Other checks than MXNet's leave it open whether training can run.
            status = "fail" if name == "MXNet" else "warn"
            message = f"cannot be examined: {_cause(error)}"
            findings.append(Check(name, status, message, remedy))
    return findings


def can_train(checks: Iterable[Check]) -> bool:
    """Whether no check failed."""
    return all(check.status != "fail" for check in checks)


def print_report(checks: list[Check]) -> None:
    """Print a line per check, wrapped on a terminal, then whether training can run."""
    import click
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console, table = Console(), Table.grid(padding=(0, 2))
    for check in checks:
        finding = "; ".join(filter(None, (check.message, check.remedy)))
        finding = " ".join(finding.split())
        if console.is_terminal:
            style = STYLES[check.status]
            table.add_row(Text(check.status, style), check.name, Text(finding))
        else:  # one line, for grep
            click.echo(f"{check.status:6}{check.name:10}{finding}")
    if console.is_terminal:
        console.print(table)
    warn, fail = (sum(c.status == s for c in checks) for s in ("warn", "fail"))
    can = "can" if can_train(checks) else "cannot"
    click.echo(f"training {can} run here ({warn} warn, {fail} fail)")


def _cause(error: Exception) -> str:
    """The error's kind and the line that names its cause."""
    line, kind = first_line(error), type(error).__name__
    named = isinstance(error, D2lparError) or line.startswith(kind)
    return shorten(line if named else f"{kind}: {line}", 240)


def check_python() -> Iterator[Check]:
    """Python 3.9 to 3.13 have been tried."""
    text = platform.python_version()
    if sys.version_info[:2] <= (3, 13):
        yield Check("Python", "ok", text)
    else:
        remedy = "where training fails, use 3.9 to 3.13"
        yield Check("Python", "warn", f"{text}: untested", remedy)


def check_platform() -> Iterator[Check]:
    """MXNet's wheels are for Linux x86-64, a few for others."""
    text = f"{platform.system()} {platform.machine()}"
    remedy = "use a Linux x86-64 machine or container, or WSL2 on Windows"
    if text == "Linux x86_64":
        yield Check("platform", "ok", text)
    elif text in ("Linux aarch64", "Darwin x86_64"):  # these have a CPU wheel
        yield Check("platform", "warn", f"{text}: untested", remedy)
    else:
        yield Check("platform", "fail", f"no wheel of MXNet 1.9.1 for {text}", remedy)


def check_numpy() -> Iterator[Check]:
    """MXNet was made for NumPy 1; d2lpar puts back the names that NumPy 2 lacks."""
    version = importlib.metadata.version("numpy")
    if int(version.split(".")[0]) < 3:
        yield Check("NumPy", "ok", version)
    else:
        remedy = "where training fails, pip install 'numpy<3'"
        yield Check("NumPy", "warn", f"{version}: untested", remedy)


def check_mxnet() -> Iterator[Check]:
    """The installed build, its libraries, and whether it trains."""
    from d2lpar.machine.environment import find_fault

    fault = find_fault(os.environ, sys.flags.optimize)
    if fault is not None:  # MXNet would abort, and its words say less
        yield Check("environment", "fail", *fault)
        return
    builds = installed_builds()
    if not builds:
        remedy = f"{CPU} (any machine) or {GPU} (NVIDIA GPU)"
        yield Check("MXNet", "fail", "not installed", remedy)
        return
    if len(builds) > 1:
        message = f"{' and '.join(builds)} overwrite each other's files"
        remedy = f"pip uninstall {' '.join(builds)}, then {CPU} or {GPU}"
        yield Check("MXNet", "fail", message, remedy)
        return
    ((build, version),) = builds.items()
    try:
        answer = process.answer("d2lpar.cli.doctor:train_a_little", {}, timeout=SECONDS)
    except RunError as error:
        answer = {"error": str(error)}
    features = [f for f in answer.get("features", ()) if not f.startswith("CPU_")]
    message = f"{version}, {' '.join([build, *features])}"
    if build == FROM_SOURCE:
        message += f" ({own_library()})"
    if version == "1.9.1":
        yield Check("MXNet", "ok", message)
    else:
        remedy = f"pip install {build}==1.9.1"
        if build == FROM_SOURCE:
            remedy = "build 1.9.1: docs/newer-gpus.md"
        yield Check("MXNet", "warn", f"{message}: tested with 1.9.1 only", remedy)
    yield from _training(build, answer)


def _training(build: str, answer: dict) -> Iterator[Check]:
    if "trained" in answer:
        message = f"gradients are right on {', '.join(answer['trained'])}"
        yield Check("training", "ok", message)
        return
    missing, error = dict(answer.get("missing", {})), answer.get("error", "")
    if "libcuda.so.1" in missing:
        missing["libcuda.so.1"] += f"; without a GPU: pip uninstall {build} && {CPU}"
    again = f"pip install --force-reinstall --no-deps {build}==1.9.1"
    if build == FROM_SOURCE:
        again = "see docs/newer-gpus.md; libraries are found through LD_LIBRARY_PATH"
    lacking = re.search(r"(lib\S+\.so[.\d]*): cannot open shared object", error)
    if lacking:
        missing[lacking[1]] = SYSTEM_LIBRARIES.get(lacking[1], again)
    for name, remedy in missing.items():
        yield Check("library", "fail", f"{name} is missing", remedy)
    if not missing:
        again = "pip install setuptools" if "distutils" in error else again
        yield Check("training", "fail", shorten(error, 240), again)


def train_a_little() -> dict:
    """Compute a gradient on each device that `auto` selects; in a process of its own.

    Returns either "missing" libraries with remedies, or "features" and "trained"
    devices. Raises :class:`RunError` where a gradient is wrong.
    """
    missing = missing_libraries(installed_builds())
    if missing:
        return {"missing": missing}
    from d2lpar import devices
    from d2lpar._mxnet import autograd, mx, np, npx

    used = devices.parse("auto")
    for device in used:
        X, w = (np.ones((1, 1, 3, 3), ctx=device) for _ in range(2))
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
    from d2lpar.machine.cores import usable_cores

    cores = usable_cores()
    threads = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    copies = os.environ.get("MXNET_CPU_TEMP_COPY", "").strip() or "256"
    message = f"{cores} usable, OMP_NUM_THREADS={threads}"
    if not threads:
        message = f"{cores} usable, shared out among the CPU contexts of a run"
    elif not (threads.isdigit() and 1 <= int(threads) <= cores):
        message += f" is not from 1 to {cores}"
        yield Check("cores", "warn", message, "unset OMP_NUM_THREADS")
        return
    if not (copies.isdigit() and int(copies) >= 64):
        message += f", MXNET_CPU_TEMP_COPY={copies} makes contexts wait for each other"
        yield Check("cores", "warn", message, "unset MXNET_CPU_TEMP_COPY")
    else:
        yield Check("cores", "ok", message)


def check_gpus() -> Iterator[Check]:
    """One check per GPU, with the installed builds of MXNet."""
    from d2lpar.machine.cards import machine
    from d2lpar.machine.cuda import BUILD_RANGE, build_has_code_for

    here, builds = machine(), installed_builds()
    if not here.gpus:
        yield Check("GPU", "ok", f"training uses CPU contexts: {here.no_gpu}")
    for gpu in here.gpus:
        gib = f"{gpu.memory_total / 2**30:.1f}" if gpu.memory_total else "?"
        capability = ".".join(map(str, gpu.capability or "?"))
        what = f"{gpu.name or '?'}, {gib} GiB, capability {capability}, "
        what += f"driver {gpu.driver or '?'}"
        remedy = None
        if FROM_SOURCE in builds:
            found, remedy = _try_gpu(gpu.number)
            what += found
        elif gpu.capability is None or not build_has_code_for(gpu.capability):
            what += f": MXNet's GPU wheels have code for {BUILD_RANGE} only"
            remedy = (
                "use CPU contexts (--devices cpu), PyTorch on this GPU, or an MXNet of "
                "your own build (docs/newer-gpus.md)"
            )
        elif all(build == "mxnet" for build in builds):
            what += ": not usable without a GPU build"
            remedy = f"pip uninstall mxnet && {GPU}" if builds else GPU
        yield Check(f"GPU {gpu.index}", "warn" if remedy else "ok", what, remedy)


def _try_gpu(number: int | None) -> tuple[str, str | None]:
    """What a library built from source does on a GPU, and a remedy where it fails."""
    from d2lpar import devices
    from d2lpar.machine.cuda import cuda_devices

    if number is None:
        return ": hidden from CUDA", "unset CUDA_VISIBLE_DEVICES"
    for why in devices.why_not_usable([number], cuda_devices()).values():
        error, _, remedy = why.partition("; ")
        return f": {error}", remedy
    return f", MXNet {FROM_SOURCE} computes on it", None


def check_data(data_dir: str | Path | None = None) -> Iterator[Check]:
    """Whether Fashion-MNIST is on disk and intact, where a run looks for it."""
    from d2lpar.datasets.download import NotInFolderError
    from d2lpar.datasets.fashion import FASHION_MNIST

    corrupt = None
    try:
        for asked_for, folder in FASHION_MNIST.folders(data_dir):
            try:
                FASHION_MNIST.read(folder)
            except NotInFolderError:
                continue
            except DataError as error:
                if asked_for:
                    raise  # a run also stops there
                corrupt = corrupt or str(error)
            else:
                yield Check("data", "ok", f"Fashion-MNIST is intact in {folder}")
                return
    except DataError as error:
        message, _, remedy = str(error).partition("; ")
        yield Check("data", "fail", message, remedy or "name another folder")
        return
    remedy = "the first run downloads it (30 MB), or takes the sample in the package"
    yield Check("data", "warn", corrupt or "Fashion-MNIST is not on disk", remedy)


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
