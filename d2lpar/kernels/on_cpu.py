"""CUDA C kernels on CPU contexts.

They are compiled once, to a shared library in d2lpar's cache, which runs a grid's
threads in turn, as an operation of MXNet's engine.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import platform
import re
import shlex
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from d2lpar._mxnet import mx
from d2lpar.kernels.signature import KernelError, Parameter
from d2lpar.machine.host import cpuinfo, omp_threads
from d2lpar.records.atomic import replacing

# IEEE arithmetic as NumPy's, to the bit: no fast-math, no contraction to fused
# multiply-adds; integers wrap. Without traps and errno the code can be vectorised.
NATIVE = "mcpu" if platform.machine() in ("arm64", "aarch64") else "march"
FLAGS = (
    f"-std=c++17 -O3 -{NATIVE}=native -ffp-contract=off -fno-math-errno "
    "-fno-trapping-math -fwrapv -shared -fPIC -pthread -s"
).split()
MIN_CUDA_THREADS = 1 << 15  # per CPU thread: fewer are not worth starting one

# The source becomes the body of a class, so that threadIdx and its like are members of
# an object that the optimiser dissolves: as globals they would prevent vector code.
# Without AVX-512 GCC would store `if (i < n) y[i] = ...` by vmaskmov, slow on AMD.
_CPP = """\
#if defined(__GNUC__) && !defined(__clang__) && !defined(__AVX512F__)
#pragma GCC optimize("no-tree-loop-if-convert")
#endif
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <algorithm>
#include <thread>
#include <vector>
#define __global__ __attribute__((always_inline))
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __forceinline__ __attribute__((always_inline))
struct uint3 {{ unsigned x, y, z; }};
struct dim3 {{ unsigned x, y, z; }};
using std::max;
using std::min;
struct cuda_thread {{
const uint3 threadIdx, blockIdx;
const dim3 blockDim, gridDim;
#line 1 "{name}.cu"
{body}
}};
#line 1 "{name} by its signature"
struct launch_record {{
  uint32_t grid[3], block[3];
  uint64_t num_threads;
  int (*get_data)(void *array, void **data);
  int (*free_array)(void *array);
  void (*put_in_order)(void *storage);
  uint64_t slots[{count}];
}};
static const bool is_array[] = {{{is_array}}};
template <class T> static T slot(const launch_record &r, int k) {{
  T value;
  __builtin_memcpy(&value, r.slots + k, sizeof(T));
  return value;
}}
static void run_blocks(const launch_record &r, uint64_t first, uint64_t last) {{
  const dim3 grid{{r.grid[0], r.grid[1], r.grid[2]}};
  const dim3 block{{r.block[0], r.block[1], r.block[2]}};
{locals}
  for (uint64_t b = first; b < last; ++b) {{
    const uint3 at{{uint32_t(b % grid.x), uint32_t(b / grid.x % grid.y),
                   uint32_t(b / grid.x / grid.y)}};
    for (unsigned z = 0; z < block.z; ++z)
      for (unsigned y = 0; y < block.y; ++y)
        for (unsigned x = 0; x < block.x; ++x) {{
          cuda_thread one{{{{x, y, z}}, at, block, grid}};
          one.{name}({arguments});
        }}
  }}
}}
extern "C" void cuda_launch(void *, void *record) {{
  launch_record r = *static_cast<const launch_record *>(record);
  for (int k = 0; k < {count}; ++k) {{
    if (!is_array[k]) continue;
    void **array = reinterpret_cast<void **>(r.slots[k]), *data = nullptr;
    if (r.put_in_order) r.put_in_order(*array);
    r.get_data(array, &data);
    r.slots[k] = uint64_t(data);
  }}
  const uint64_t blocks = uint64_t(r.grid[0]) * r.grid[1] * r.grid[2];
  const uint64_t parts = std::max<uint64_t>(1, std::min(r.num_threads, blocks));
  std::vector<std::thread> threads;
  for (uint64_t p = 1; p < parts; ++p)
    threads.emplace_back(run_blocks, r, blocks * p / parts, blocks * (p + 1) / parts);
  run_blocks(r, 0, blocks / parts);
  for (std::thread &thread : threads) thread.join();
}}
extern "C" void cuda_free(void *record) {{
  const launch_record &r = *static_cast<const launch_record *>(record);
  for (int k = 0; k < {count}; ++k)
    if (is_array[k]) r.free_array(reinterpret_cast<void *>(r.slots[k]));
  free(record);
}}
"""
# It would compile, but each thread of a grid would have its own.
_DEVICE_VARIABLE = re.compile(r"__(?:device|constant)__[^(){};]*[;=\[]")


def compiler() -> list[str]:
    """Return the command of the C++ compiler: $CXX, or c++."""
    command = shlex.split(os.environ.get("CXX") or "c++")
    if not shutil.which(command[0]):
        raise KernelError(
            f"no C++ compiler {command[0]}, which kernels need on CPU contexts: "
            "apt-get install g++, dnf install gcc-c++, or name one in CXX"
        )
    return command


def cache_folder() -> Path:
    """Return the folder of compiled kernels, which can be deleted at any time."""
    import pooch  # slow to import

    return pooch.os_cache("d2lpar") / "kernels"


def load(source: str, name: str, parameters: Sequence[Parameter]) -> CpuKernel:
    """Return kernel `name` of CUDA C `source`, compiled unless the cache has it."""
    if variable := _DEVICE_VARIABLE.search(source):
        raise KernelError(
            f"kernel {name}: {variable[0].strip('[;= ')}: a variable that all threads "
            "share; launch it on mx.gpu(i), or write it without"
        )
    text = _CPP.format(
        name=name,
        # Members of a class have no linkage.
        body=re.sub(r'extern\s*"C"', "", source),
        count=len(parameters),
        is_array=", ".join(str(p.pointer).lower() for p in parameters),
        locals="\n".join(
            f"  const auto a{k} = slot<{p.declaration}>(r, {k});"
            for k, p in enumerate(parameters)
        ),
        arguments=", ".join(f"a{k}" for k in range(len(parameters))),
    )
    command = compiler()
    # Machines with other instruction sets (-march=native) may share a cache.
    key = "\0".join([text, *FLAGS, *command, cpuinfo().get("flags", "")])
    digest = hashlib.sha256(key.encode()).hexdigest()[:32]
    path = cache_folder() / f"{name}-{digest}.so"
    try:
        if not path.is_file():
            with replacing(path) as tmp:
                compile_cpp(text, name, command, tmp)
    except OSError as error:
        raise KernelError(
            f"kernel {name}: {error}; XDG_CACHE_HOME names another cache"
        ) from None
    library = ctypes.CDLL(str(path))
    return CpuKernel(library.cuda_launch, library.cuda_free, parameters)


def compile_cpp(text: str, name: str, command: Sequence[str], to: Path) -> None:
    """Compile C++ into the shared library `to`; :class:`KernelError` if it fails."""
    with tempfile.TemporaryDirectory(prefix="d2lpar-") as folder:
        cpp = Path(folder, "kernel.cpp")
        cpp.write_text(text, encoding="utf-8")
        done = subprocess.run(
            [*command, *FLAGS, str(cpp), "-o", str(to)],
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},  # the user sees the first error
        )
    if done.returncode != 0:
        lines = done.stderr.splitlines()
        shown = next((line for line in lines if "error" in line), done.stderr[:200])
        raise KernelError(f"kernel {name} does not compile: {shown}")


_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]


def _address(name: str) -> int:
    """Return where a function of MXNet's library begins; 0 if it has none."""
    function = getattr(mx.base._LIB, name, 0)
    return ctypes.cast(function, ctypes.c_void_p).value or 0


# What a launch does with its arrays when they are computed. The last is
# NDArray::Chunk::Reorder2Default, which ends oneDNN's own layout of an array; builds
# without oneDNN lack it.
_FUNCTIONS = (
    _address("MXNDArrayGetData"),
    _address("MXNDArrayFree"),
    _address("_ZN5mxnet7NDArray5Chunk15Reorder2DefaultEv"),
)


class CpuKernel(NamedTuple):
    """Launch a compiled kernel as ``mx.rtc`` does."""

    cuda_launch: Callable
    cuda_free: Callable
    parameters: Sequence[Parameter]

    def launch(
        self,
        args: Sequence,
        ctx: mx.Context,
        grid_dims: Sequence[int],
        block_dims: Sequence[int],
    ) -> None:
        """Hand a launch of checked arrays and NumPy scalars to MXNet's engine.

        It runs once the arrays are computed: only then are their addresses known.
        """
        cuda_threads = math.prod(map(int, grid_dims)) * math.prod(map(int, block_dims))
        threads = min(omp_threads() or 1, cuda_threads // MIN_CUDA_THREADS + 1)
        # The launch_record of the C++: the grid, and 8 bytes for each argument.
        record = struct.pack("6I4Q", *grid_dims, *block_dims, threads, *_FUNCTIONS)
        # By storage. An array that is only read may be put in order, so it counts as
        # written, too.
        handles: dict[int, ctypes.c_void_p] = {}
        for parameter, arg in zip(self.parameters, args):
            if parameter.pointer:
                handle = ctypes.c_void_p()  # which outlives the Python object
                mx.base.check_call(
                    mx.base._LIB.MXNDArrayDetach(arg.handle, ctypes.byref(handle))
                )
                record += struct.pack("Q", handle.value)
                handles[storage(arg)] = arg.handle
            else:
                record += arg.tobytes().ljust(8, b"\0")
        # cuda_free frees it when the kernel has run.
        copy = _libc.malloc(len(record))
        ctypes.memmove(copy, record, len(record))
        mx.base.check_call(
            mx.base._LIB.MXEnginePushSyncND(
                self.cuda_launch,
                ctypes.c_void_p(copy),
                self.cuda_free,
                # The struct mxnet::Context
                (ctypes.c_int * 2)(ctx.device_typeid, ctx.device_id),
                None,  # arrays that are only read
                0,
                mx.base.c_array(ctypes.c_void_p, [*handles.values()]),
                len(handles),
                None,  # property
                0,  # priority
                None,  # name
            )
        )


def storage(array: mx.nd.NDArray) -> int:
    """Return the identity of the array's storage, shared by its views."""
    # The first word of MXNet's NDArray (include/mxnet/ndarray.h of MXNet 1.9.1).
    return ctypes.cast(array.handle, ctypes.POINTER(ctypes.c_size_t))[0]
