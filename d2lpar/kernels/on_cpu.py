"""CUDA C kernels on CPU contexts: compiled once by a C++ compiler, run by the engine.

A kernel's C++ (:func:`d2lpar.kernels.source.cpp_source`) becomes a shared library in
d2lpar's cache, named after everything that it depends on. A launch is an operation of
MXNet's engine, as mx.rtc's is: it runs on the context's own worker thread, after what
was to write its arguments, before what is to read its results, and Python goes on.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import platformdirs

from d2lpar._mxnet import mx
from d2lpar.kernels.source import KernelError, Parameter, cpp_source
from d2lpar.machine import cores
from d2lpar.records.atomic import replacing

# IEEE arithmetic as NumPy's, to the bit: no fast-math, no contraction to fused
# multiply-adds; integers wrap. That nothing traps or sets errno allows vector code.
FLAGS = (
    "-std=c++17 -O3 -march=native -ffp-contract=off -fno-math-errno -fno-trapping-math "
    "-fwrapv -shared -fPIC -pthread -s"
).split()
COMPILERS = ("c++", "g++", "clang++")
COMPILE_SECONDS = 120
# Fewer threads of the grid than this are not worth a thread of the machine.
WORTH_A_THREAD = 1 << 15

_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]


def compiler() -> list[str]:
    """The command of the C++ compiler: $CXX, else the system's, else ziglang's.

    Raises :class:`KernelError` when $CXX is not there, or there is none at all.
    """
    asked_for = shlex.split(os.environ.get("CXX", ""))
    if asked_for:
        if shutil.which(asked_for[0]) is None:
            raise KernelError(
                f"CXX={os.environ['CXX']}: there is no such compiler; unset CXX, or "
                "name one that is there"
            )
        return asked_for
    for name in COMPILERS:
        if shutil.which(name):
            return [name]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "c++"]
    raise KernelError(
        "no C++ compiler (c++, g++ or clang++), which kernels need on CPU contexts: "
        "apt-get install g++, dnf install gcc-c++, pip install 'd2lpar[kernels]', or "
        "name one in CXX"
    )


@functools.cache
def _version(command: tuple[str, ...]) -> str:
    """What tells one compiler from another: where it is, and its version."""
    where = os.path.realpath(shutil.which(command[0]) or command[0])
    done = _run([*command, "--version"])
    return f"{where} {' '.join(command[1:])} {done.stdout.splitlines()[:1]}"


@functools.lru_cache(maxsize=1)
def _machine() -> str:
    """What -march=native stands for: a cache may be shared by several machines."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            flags = re.findall(r"^(?:flags|Features)\s*:(.+)$", f.read(), re.MULTILINE)
    except OSError:
        flags = []
    return f"{platform.machine()} {cores.cpu_model()} {flags[:1]}"


def cache_folder() -> Path:
    """Where compiled kernels are kept; the folder can be deleted at any time."""
    return Path(platformdirs.user_cache_dir("d2lpar")) / "kernels"


def load(source: str, name: str, parameters: Sequence[Parameter]):
    """The compiled ``cuda_launch`` of a kernel, from the cache where it is there.

    Raises :class:`KernelError` for a kernel that a CPU cannot run, one that does not
    compile, whose parameters are not those of the source, and where there is no
    compiler or the cache cannot be written.
    """
    text = cpp_source(source, name, parameters)
    return _load(text, name, tuple(compiler()))


@functools.cache
def _load(text: str, name: str, command: tuple[str, ...]):
    parts = "\0".join([text, *FLAGS, _version(command), _machine()])
    digest = hashlib.sha256(parts.encode()).hexdigest()[:32]
    path = cache_folder() / f"{re.sub(r'[^A-Za-z0-9]+', '_', name)}-{digest}.so"
    try:
        if not path.is_file():
            with replacing(path) as tmp:
                compile_cpp(text, name, command, tmp)
        library = ctypes.CDLL(str(path))
    except OSError as error:
        reason = error.strerror or error
        raise KernelError(
            f"kernel {name}: {path} cannot be written or loaded ({reason}); name "
            "another cache with XDG_CACHE_HOME, or delete the file"
        ) from None
    return library.cuda_launch


def compile_cpp(text: str, name: str, command: Sequence[str], to: Path) -> None:
    """Compile C++ into the shared library `to`; :class:`KernelError` says why not."""
    with tempfile.TemporaryDirectory(prefix="d2lpar-") as folder:
        cpp = Path(folder, "kernel.cpp")
        cpp.write_text(text, encoding="utf-8")
        done = _run([*command, *FLAGS, str(cpp), "-o", str(to)])
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        errors = [line for line in lines if "error" in line] or lines or ["no message"]
        message = re.sub(r"^.*?(\w+\.cu:\d+)(:\d+)?: ", r"\1: ", errors[0])
        message = re.sub(r"^.*: (?=its argument)", "", message)  # a static_assert's
        raise KernelError(f"kernel {name} does not compile: {message}")


def _run(command: Sequence[str]) -> subprocess.CompletedProcess:
    # Messages in English, with plain quotes: the first error is shown.
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=COMPILE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or f"no answer in {COMPILE_SECONDS} s"
        raise KernelError(f"{shlex.join(command[:3])}: {reason}") from None


@functools.cache
def launch_record(num_slots: int) -> type[ctypes.Structure]:
    """The structure that ``cuda_launch`` takes: the grid, and an 8-byte slot each."""

    class LaunchRecord(ctypes.Structure):
        _fields_ = [
            ("grid", ctypes.c_uint32 * 3),
            ("block", ctypes.c_uint32 * 3),
            ("num_threads", ctypes.c_uint64),
            ("slots", ctypes.c_uint64 * max(1, num_slots)),
        ]

    return LaunchRecord


class _Context(ctypes.Structure):
    """mxnet::Context of C++."""

    _fields_ = [("device_type", ctypes.c_int), ("device_id", ctypes.c_int32)]


def launch(
    cuda_launch,
    parameters: Sequence[Parameter],
    args: Sequence,
    ctx: mx.Context,
    grid_dims: Sequence[int],
    block_dims: Sequence[int],
) -> None:
    """Hand a launch to MXNet's engine. `args` are arrays and NumPy scalars, checked.

    Waits until the arrays are computed, because only then is it known where they are.
    The kernel itself runs behind Python's back, on the threads that an operator of
    MXNet has there (OMP_NUM_THREADS).
    """
    record_type = launch_record(len(args))
    record = record_type()
    record.grid[:], record.block[:] = grid_dims, block_dims
    num_threads = _product(grid_dims) * _product(block_dims)
    record.num_threads = min(
        cores.omp_threads() or 1, num_threads // WORTH_A_THREAD + 1
    )
    base = ctypes.addressof(record) + record_type.slots.offset
    for k, (parameter, arg) in enumerate(zip(parameters, args)):
        if parameter.pointer:
            record.slots[k] = address(arg)
        else:
            number = arg.tobytes()
            ctypes.memmove(base + 8 * k, number, len(number))
    # The engine frees its copy when the kernel has run. The arrays it keeps itself:
    # memory goes back only after the operations on it.
    size = ctypes.sizeof(record)
    copy = _libc.malloc(size)
    ctypes.memmove(copy, ctypes.addressof(record), size)
    const, mutable = (
        [a.handle for a, p in zip(args, parameters) if p.pointer and p.const == only]
        for only in (True, False)
    )
    mx.base.check_call(
        mx.base._LIB.MXEnginePushSyncND(
            cuda_launch,
            ctypes.c_void_p(copy),
            _libc.free,
            ctypes.byref(_Context(ctx.device_typeid, ctx.device_id)),
            mx.base.c_array(ctypes.c_void_p, const),
            len(const),
            mx.base.c_array(ctypes.c_void_p, mutable),
            len(mutable),
            None,
            0,
            None,
        )
    )


def address(array: mx.nd.NDArray) -> int:
    """Where the elements of a CPU array begin, once it has been computed; 0 if none."""
    array.wait_to_read()
    found = ctypes.c_void_p()
    # Where oneDNN keeps the array in a layout of its own, this puts it in order first.
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(found)))
    return found.value or 0


def _product(dims: Sequence[int]) -> int:
    return dims[0] * dims[1] * dims[2]
