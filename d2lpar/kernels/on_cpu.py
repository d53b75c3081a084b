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
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

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
    if command := shlex.split(os.environ.get("CXX", "")):
        if shutil.which(command[0]):
            return command
        raise KernelError(
            f"CXX={os.environ['CXX']}: there is no such compiler; unset CXX, or name "
            "one that exists"
        )
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
    # Machines with other compilers or processors (-march=native) may share a cache.
    compiler = os.path.realpath(shutil.which(command[0]) or command[0])
    version = _run([*command, "--version"]).stdout.splitlines()[:1]
    here = (platform.machine(), cpu_model(), cpu_flags())
    parts = "\0".join([text, *FLAGS, compiler, *command[1:], *version, *here])
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
    """Compile C++ into the shared library `to`; :class:`KernelError` if it fails."""
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
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},  # the user sees the first error
            stdin=subprocess.DEVNULL,
            timeout=COMPILE_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or f"no answer in {COMPILE_SECONDS} s"
        raise KernelError(f"{shlex.join(command[:3])}: {reason}") from None


class _Context(ctypes.Structure):
    """mxnet::Context of C++."""

    _fields_ = [("device_type", ctypes.c_int), ("device_id", ctypes.c_int32)]


class CpuKernel(NamedTuple):
    """A compiled kernel, launched as a kernel of ``mx.rtc`` is."""

    cuda_launch: Callable
    parameters: Sequence[Parameter]

    def launch(
        self,
        args: Sequence,
        ctx: mx.Context,
        grid_dims: Sequence[int],
        block_dims: Sequence[int],
        shared_mem: int,
    ) -> None:
        """Hand a launch to MXNet's engine. `args` are checked arrays, NumPy scalars.

        `shared_mem` is 0: a CPU has none. Waits until the arrays are computed, because
        only then is their address known. The kernel itself runs asynchronously, on as
        many threads as an operator of MXNet has there (OMP_NUM_THREADS).
        """
        worth = math.prod(map(int, (*grid_dims, *block_dims))) // WORTH_A_THREAD + 1
        threads = min(omp_threads() or 1, worth)
        # The launch_record of the C++: the grid, and 8 bytes for each argument.
        record = struct.pack("6IQ", *grid_dims, *block_dims, threads)
        read, written = [], []
        for parameter, arg in zip(self.parameters, args):
            if parameter.pointer:
                record += struct.pack("Q", address(arg))
                (read if parameter.const else written).append(arg.handle)
            else:
                record += arg.tobytes().ljust(8, b"\0")
        # The engine frees the record when the kernel has run. It keeps the arrays
        # itself: their memory goes back only after the operations on it.
        copy = _libc.malloc(len(record))
        ctypes.memmove(copy, record, len(record))
        mx.base.check_call(
            mx.base._LIB.MXEnginePushSyncND(
                self.cuda_launch,
                *(ctypes.c_void_p(copy), _libc.free),
                ctypes.byref(_Context(ctx.device_typeid, ctx.device_id)),
                *(mx.base.c_array(ctypes.c_void_p, read), len(read)),
                *(mx.base.c_array(ctypes.c_void_p, written), len(written)),
                *(None, 0, None),  # property, priority, name
            )
        )


def address(array: mx.nd.NDArray) -> int:
    """Where the elements of a CPU array begin, once computed; 0 if it is empty."""
    array.wait_to_read()
    pointer = ctypes.c_void_p()
    # If oneDNN keeps the array in a layout of its own, this first puts it in order.
    mx.base.check_call(
        mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer))
    )
    return pointer.value or 0
