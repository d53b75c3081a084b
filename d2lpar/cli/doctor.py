"""Whether training can run on this machine, with a remedy for each finding.

:func:`examine` never raises, whatever is broken. Therefore MXNet is tried in a process
of its own, which an unsuitable native library may abort, and every package that may be
missing is imported by the check that needs it.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from d2lpar.errors import D2lparError, DataError, RunError, first_line
from d2lpar.machine.fresh_process import answer_of
from d2lpar.machine.mxnet_builds import (
    FROM_SOURCE,
    install_command,
    installed_builds,
    missing_libraries,
    own_library,
)

if TYPE_CHECKING:
    from d2lpar.machine.cards import Machine

MXNET_VERSION = "1.9.1"
CPU, GPU = install_command("cpu"), install_command("cu112")
CHILD = "from d2lpar.cli.doctor import answer_parent; answer_parent()"
CHILD_SECONDS = 120  # a first import from a cold disk, with several GPUs, takes a while

ONE_LINE = 1000  # columns, more than any finding needs
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

    def cores() -> Check:
        from d2lpar.machine.cores import usable_cores

        return check_cores(usable_cores(), os.environ)

    def gpus() -> list[Check]:
        from d2lpar.machine.cards import machine

        return check_gpus(machine(), list(installed_builds()))

    def mxnet() -> list[Check]:
        from d2lpar.machine.environment import find_fault

        fault = find_fault(os.environ, sys.flags.optimize)
        if fault is not None:  # MXNet would abort, and its words say less
            return [Check("environment", "fail", *fault)]
        return check_mxnet(installed_builds(), ask_child)

    checks = {
        "Python": lambda: check_python(sys.version_info[:3]),
        "platform": lambda: check_platform(platform.system(), platform.machine()),
        "NumPy": lambda: check_numpy(importlib.metadata.version("numpy")),
        "MXNet": mxnet,
        "cores": cores,
        "GPU": gpus,
        "data": lambda: check_data(data_dir),
        "figures": lambda: check_figures(out),
    }
    findings: list[Check] = []
    for name, check in checks.items():
        try:
            lines = check()
        except Exception as error:
            # Other failed checks than these leave it open whether training can run.
            stops = name == "MXNet" or isinstance(error, ImportError) and name != "GPU"
            message = f"cannot be examined: {_cause(error)}"
            remedy = "pip install --force-reinstall d2lpar"
            lines = Check(name, "fail" if stops else "warn", message, remedy)
        findings += [lines] if isinstance(lines, Check) else lines
    return findings


def can_train(checks: Iterable[Check]) -> bool:
    """Whether no check failed."""
    return all(check.status != "fail" for check in checks)


def print_report(checks: Sequence[Check], console: Console | None = None) -> None:
    """Print the checks as a table, then whether training can run here.

    On a terminal long findings wrap within their column; elsewhere each check is one
    line, for grep.
    """
    console = console or Console(width=None if sys.stdout.isatty() else ONE_LINE)
    table = Table.grid("status", "name", "finding", padding=(0, 2))
    for check in checks:
        finding = f"{check.message}; {check.remedy}" if check.remedy else check.message
        status = Text(check.status, STYLES[check.status])
        table.add_row(status, check.name, Text(" ".join(finding.split())))
    console.print(table)
    warn, fail = (sum(c.status == s for c in checks) for s in ("warn", "fail"))
    can = "can" if can_train(checks) else "cannot"
    summary = f"training {can} run here ({warn} warn, {fail} fail)"
    console.print(summary, highlight=False)


def _cause(error: Exception) -> str:
    """The error's kind and the line that names its cause."""
    line, kind = first_line(error), type(error).__name__
    named = isinstance(error, D2lparError) or line.startswith(kind)
    return shorten(line if named else f"{kind}: {line}", 240)


def check_python(version: tuple[int, ...]) -> Check:
    """Takes (major, minor, patch)."""
    text = ".".join(map(str, version))
    if version[:2] < (3, 9):
        message = f"d2lpar does not run on Python {text}"
        return Check("Python", "fail", message, "use Python 3.9 to 3.14")
    if version[:2] > (3, 14):
        message = f"{text}: nobody has tried d2lpar on it"
        return Check("Python", "warn", message, "where training fails, use 3.9 to 3.14")
    return Check("Python", "ok", text)


def check_platform(system: str, machine: str) -> Check:
    """Takes what ``platform.system()`` and ``platform.machine()`` return."""
    text = f"{system} {machine}"
    if text == "Linux x86_64":
        return Check("platform", "ok", text)
    remedy = "use a Linux x86-64 machine or container, or WSL2 on Windows"
    if text in ("Linux aarch64", "Darwin x86_64"):  # these have a CPU wheel of 1.9.1
        message = f"{text}: d2lpar is tested on Linux x86_64 only"
        return Check("platform", "warn", message, f"where training fails, {remedy}")
    message = f"no wheel of MXNet {MXNET_VERSION} for {text}"
    return Check("platform", "fail", message, remedy)


def check_numpy(version: str) -> Check:
    """MXNet was made for NumPy 1; d2lpar puts back the names that NumPy 2 lacks."""
    if int(version.split(".")[0]) < 3:
        return Check("NumPy", "ok", version)
    message = f"{version}: nobody has tried MXNet {MXNET_VERSION} with it"
    return Check(
        "NumPy", "warn", message, "where training fails, pip install 'numpy<3'"
    )


def check_mxnet(builds: Mapping[str, str], ask: Callable[[], dict]) -> list[Check]:
    """The installed build, its libraries, and whether it trains.

    `builds` maps names to versions; `ask` returns the result of :func:`train_a_little`
    and is called only if there is exactly one build.
    """
    if not builds:
        remedy = f"{CPU} (any machine) or {GPU} (NVIDIA GPU)"
        return [Check("MXNet", "fail", "not installed", remedy)]
    if len(builds) > 1:
        message = f"{' and '.join(builds)} overwrite each other's files"
        remedy = f"pip uninstall {' '.join(builds)}, then {CPU} or {GPU}"
        return [Check("MXNet", "fail", message, remedy)]
    ((build, version),) = builds.items()
    answer = ask()
    features = [f for f in answer.get("features", ()) if not f.startswith("CPU_")]
    message = f"{version}, {' '.join([build, *features])}"
    if build == FROM_SOURCE:
        message += f" ({own_library()})"
    installed = Check("MXNet", "ok", message)
    if version != MXNET_VERSION:
        message += f": d2lpar is tested with {MXNET_VERSION} only"
        remedy = f"pip install {build}=={MXNET_VERSION}"
        if build == FROM_SOURCE:
            remedy = f"build {MXNET_VERSION}: docs/newer-gpus.md"
        installed = Check("MXNet", "warn", message, remedy)
    return [installed, *_training(build, answer)]


def _training(build: str, answer: Mapping) -> list[Check]:
    if "trained" in answer:
        message = f"gradients are right on {', '.join(answer['trained'])}"
        return [Check("training", "ok", message)]
    missing, error = dict(answer.get("missing", {})), answer.get("error", "")
    if "libcuda.so.1" in missing:
        missing["libcuda.so.1"] += f"; without a GPU: pip uninstall {build} && {CPU}"
    again = f"pip install --force-reinstall --no-deps {build}=={MXNET_VERSION}"
    if build == FROM_SOURCE:
        again = "see docs/newer-gpus.md; libraries are found through LD_LIBRARY_PATH"
    lacking = re.search(r"(lib\S+\.so[.\d]*): cannot open shared object", error)
    if lacking:
        missing[lacking[1]] = SYSTEM_LIBRARIES.get(lacking[1], again)
    if missing:
        lines = [(f"{name} is missing", remedy) for name, remedy in missing.items()]
        return [Check("library", "fail", *line) for line in lines]
    again = "pip install setuptools" if "distutils" in error else again
    return [Check("training", "fail", error, again)]


def train_a_little() -> dict:
    """Compute a gradient on each device that `auto` selects; run in a child process.

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


def answer_parent() -> None:
    """In the child: print :func:`train_a_little`'s result, or the error, as JSON."""
    try:
        answer = train_a_little()
    except Exception as error:
        answer = {"error": _cause(error)}
    print("\n" + json.dumps(answer), flush=True)


def ask_child(code: str = CHILD, seconds: float = CHILD_SECONDS) -> dict:
    """The answer of a process of its own, by default of :func:`answer_parent`."""
    return answer_of(code, seconds)


def check_cores(cores: int, environ: Mapping[str, str]) -> Check:
    """Check the number of usable cores and the two variables that can waste them."""
    threads = environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    copies = environ.get("MXNET_CPU_TEMP_COPY", "").strip() or "256"
    message = f"{cores} usable, OMP_NUM_THREADS={threads}"
    if not threads:
        message = f"{cores} usable, shared out among the CPU contexts of a run"
    elif not (threads.isdigit() and 1 <= int(threads) <= cores):
        message += f" is not from 1 to {cores}"
        return Check("cores", "warn", message, "unset OMP_NUM_THREADS")
    if not (copies.isdigit() and int(copies) >= 64):
        message += f", MXNET_CPU_TEMP_COPY={copies} makes contexts wait for each other"
        return Check("cores", "warn", message, "unset MXNET_CPU_TEMP_COPY")
    return Check("cores", "ok", message)


def check_gpus(here: Machine, builds: Sequence[str]) -> list[Check]:
    """One check per GPU of a machine on which these builds of MXNet are installed."""
    from d2lpar.machine.cuda import BUILD_RANGE, build_has_code_for

    if not here.gpus:
        return [Check("GPU", "ok", f"training uses CPU contexts: {here.no_gpu}")]
    checks = []
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
            remedy = "use CPU contexts (--devices cpu), PyTorch on this GPU, or an "
            remedy += "MXNet of your own build (docs/newer-gpus.md)"
        elif all(build == "mxnet" for build in builds):
            what += ": not usable without a GPU build"
            remedy = f"pip uninstall mxnet && {GPU}" if builds else GPU
        status = "warn" if remedy else "ok"
        checks.append(Check(f"GPU {gpu.index}", status, what, remedy))
    return checks


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


def check_data(data_dir: str | Path | None = None) -> Check:
    """Check that Fashion-MNIST is on disk and intact, where a run looks for it."""
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
                return Check("data", "ok", f"Fashion-MNIST is intact in {folder}")
    except DataError as error:
        message, _, remedy = str(error).partition("; ")
        return Check("data", "fail", message, remedy or "name another folder")
    remedy = "the first run downloads it (30 MB), or generates garments if it cannot"
    return Check("data", "warn", corrupt or "Fashion-MNIST is not on disk", remedy)


def check_figures(out: str | Path) -> Check:
    """Check that files can be written below `out`, by writing and removing one."""
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
        return Check("figures", "fail", message, "name another folder with --out")
    return Check("figures", "ok", f"{folder} can be written")
