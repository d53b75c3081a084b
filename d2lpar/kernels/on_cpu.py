"""CUDA C kernels on CPU contexts: compiled once by a C++ compiler, run by the engine.

A kernel's C++ (:func:`d2lpar.kernels.cpp.cpp_source`) becomes a shared library in
d2lpar's cache, named after everything that it depends on. A launch is an operation of
MXNet's engine, as mx.rtc's is: it runs on the context's own worker thread, after the
operations that write its arguments and before those that read its results, while Python
continues.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import math
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
from d2lpar.kernels.cpp import cpp_source
from d2lpar.kernels.source import KernelError, Parameter
from d2lpar.machine.cores import cpu_flags, cpu_model, omp_threads
from d2lpar.records.atomic import replacing

# IEEE arithmetic as NumPy's, to the bit: no fast-math, no contraction to fused
# multiply-adds; integers wrap. Without traps and errno the code can be vectorised.
FLAGS = (
    "-std=c++17 -O3 -march=native -ffp-contract=off -fno-math-errno -fno-trapping-math "
    "-fwrapv -shared -fPIC -pthread -s"
).split()
COMPILERS = ("c++", "g++", "clang++")
COMPILE_SECONDS = 120
# Threads of a grid that are worth a thread of the machine.
WORTH_A_THREAD = 1 << 15

_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]


def compiler() -> list[str]:
    """The command of the C++ compiler: $CXX, else the system's, else ziglang's.

    Raises :class:`KernelError` when $CXX does not exist, or no compiler at all.
    """
    command = shlex.split(os.environ.get("CXX", ""))
    if command:
        if shutil.which(command[0]) is None:
            raise KernelError(
                f"CXX={os.environ['CXX']}: there is no such compiler; unset CXX, or "
                "name one that exists"
            )
        return command
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
    """What distinguishes a compiler from others: its place and its version."""
    where = os.path.realpath(shutil.which(command[0]) or command[0])
    done = _run([*command, "--version"])
    return f"{where} {' '.join(command[1:])} {done.stdout.splitlines()[:1]}"


def cache_folder() -> Path:
    """The folder of compiled kernels, which can be deleted at any time."""
    return Path(platformdirs.user_cache_dir("d2lpar")) / "kernels"


def load(source: str, name: str, parameters: Sequence[Parameter]) -> CpuKernel:
    """Kernel `name` of CUDA C `source`, compiled unless the cache has it.

    Raises :class:`KernelError` for a kernel that a CPU cannot run or that does not
    compile, for parameters that differ from the source's, without a compiler, and for a
    cache that cannot be written.
    """
    text = cpp_source(source, name, parameters)
    return CpuKernel(_load(text, name, tuple(compiler())), parameters)


@functools.cache
def _load(text: str, name: str, command: tuple[str, ...]):
    # What -march=native means here is part of it: several machines may share a cache.
    here = (platform.machine(), cpu_model(), cpu_flags())
    parts = "\0".join([text, *FLAGS, _version(command), *here])
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
    """Compile C++ into the shared library `to`, or raise :class:`KernelError`."""
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
    # Messages in English, with plain quotes: the user sees the first error.
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
    """The structure that ``cuda_launch`` takes: the grid, 8 bytes per argument."""

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


class CpuKernel:
    """A compiled kernel; launched as a kernel of ``mx.rtc`` is."""

    def __init__(self, cuda_launch, parameters: Sequence[Parameter]) -> None:
        self.cuda_launch, self.parameters = cuda_launch, parameters

    def launch(
        self,
        args: Sequence,
        ctx: mx.Context,
        grid_dims: Sequence[int],
        block_dims: Sequence[int],
    ) -> None:
        """Hand a launch to MXNet's engine. `args` are checked arrays, NumPy scalars.

        Waits until the arrays are computed, because only then is their address known.
        The kernel itself runs asynchronously, on as many threads as an operator of
        MXNet has there (OMP_NUM_THREADS).
        """
        record = self._record(args, grid_dims, block_dims)
        arrays = [(a, p.const) for a, p in zip(args, self.parameters) if p.pointer]
        read = [array.handle for array, const in arrays if const]
        written = [array.handle for array, const in arrays if not const]
        # The engine frees the record when the kernel has run. It keeps the arrays
        # itself: their memory goes back only after the operations on it.
        size = ctypes.sizeof(record)
        copy = _libc.malloc(size)
        ctypes.memmove(copy, ctypes.addressof(record), size)
        mx.base.check_call(
            mx.base._LIB.MXEnginePushSyncND(
                self.cuda_launch,
                ctypes.c_void_p(copy),
                _libc.free,
                ctypes.byref(_Context(ctx.device_typeid, ctx.device_id)),
                mx.base.c_array(ctypes.c_void_p, read),
                len(read),
                mx.base.c_array(ctypes.c_void_p, written),
                len(written),
                *(None, 0, None),  # property, priority, name
            )
        )

    def _record(
        self, args: Sequence, grid_dims: Sequence[int], block_dims: Sequence[int]
    ) -> ctypes.Structure:
        """The grid and the arguments: addresses of arrays, bytes of numbers."""
        record = launch_record(len(args))()
        record.grid[:], record.block[:] = grid_dims, block_dims
        worth = math.prod(map(int, (*grid_dims, *block_dims))) // WORTH_A_THREAD + 1
        record.num_threads = min(omp_threads() or 1, worth)
        for k, (parameter, arg) in enumerate(zip(self.parameters, args)):
            if parameter.pointer:
                record.slots[k] = address(arg)
            else:
                # C reads the number from the start of its slot.
                number = arg.tobytes().ljust(8, b"\0")
                record.slots[k] = int.from_bytes(number, sys.byteorder)
        return record


def address(array: mx.nd.NDArray) -> int:
    """Where the elements of a CPU array begin, once computed; 0 if it is empty."""
    array.wait_to_read()
    pointer = ctypes.c_void_p()
    # If oneDNN keeps the array in a layout of its own, this first puts it in order.
    mx.base.check_call(
        mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer))
    )
    return pointer.value or 0
