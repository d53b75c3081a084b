"""CUDA C as C++: the same kernel for a CPU, every thread of a grid one after the other.

Loads no MXNet.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from d2lpar.kernels.source import KernelError, Parameter

_HARMLESS = {
    "__global__", "__device__", "__host__", "__restrict__", "__forceinline__",
    "__noinline__", "__inline__", "__launch_bounds__", "__ldg", "__FILE__", "__LINE__",
}  # fmt: skip
_NOT_ON_A_CPU = (
    r"\b__\w+|\bwarpSize\b|\batomic\w+|\bclock(?:64)?\s*\(|\bcooperative_groups\b"
    r"|\b(?:tex|surf)[123]D\w*|\basm\b|<<<|\bhalf2?\b|\bcuda\w+"
)
_KERNEL_NAMES = re.compile(
    r"__global__\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?[\w\s]*?(\w+)\s*\("
)
_COMMENT_OR_STRING = re.compile(
    r"//[^\n]*|/\*.*?\*/|(\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')", re.DOTALL
)


def check_runs_on_a_cpu(code: str, name: str) -> None:
    """Raise :class:`KernelError` that names what `code` uses and a CPU lacks.

    The threads of a block run one after the other here. So they have no shared memory,
    no synchronisation and no warps; nor are there atomics, textures, intrinsics that
    begin with __, device variables or inline PTX.
    """
    code = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', code)
    used = sorted(set(re.findall(_NOT_ON_A_CPU, code)) - _HARMLESS)
    if re.search(r"__device__[^(){};]*[;=\[]", code):
        used.append("a __device__ variable")
    if used:
        raise KernelError(
            f"kernel {name} uses {', '.join(u.rstrip('( ') for u in used)}, which only "
            "a GPU has: launch it on mx.gpu(i), or write it without"
        )


_PRELUDE = """\
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <algorithm>
#include <system_error>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>
#define __global__ __attribute__((always_inline))
#define __device__
#define __host__
#define __forceinline__ __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; };
using std::max;
using std::min;
template <class T> static inline T __ldg(const T *p) { return *p; }
static inline float cuda_rsqrt(float x) { return 1 / sqrtf(x); }
static inline double cuda_rsqrt(double x) { return 1 / sqrt(x); }
#define rsqrtf cuda_rsqrt
#define rsqrt cuda_rsqrt
"""
# The source becomes the body of a class, so that threadIdx and its like are members of
# an object that the optimiser dissolves: as globals they would prevent vector code.
_AROUND = """\
{prelude}{includes}
struct cuda_thread {{
const uint3 threadIdx, blockIdx;
const dim3 blockDim, gridDim;
#line 1 "{file}"
{body}
}};
#line 1 "signature"
template <class Given, class Declared> constexpr bool agree() {{
  using G = std::remove_pointer_t<Given>; using D = std::remove_pointer_t<Declared>;
  return std::is_pointer_v<Given> == std::is_pointer_v<Declared>
      && std::is_floating_point_v<G> == std::is_floating_point_v<D>
      && std::is_signed_v<G> == std::is_signed_v<D> && sizeof(G) == sizeof(D)
      && (std::is_const_v<G> || !std::is_const_v<D>);
}}
struct launch_record {{
  uint32_t grid[3], block[3];
  uint64_t num_threads;
  uint64_t slots[{count}];
}};
template <class A> static A slot(const launch_record &r, size_t k) {{
  A value;
  __builtin_memcpy(&value, r.slots + k, sizeof(A));
  return value;
}}
template <auto kernel, class... A> static void run_blocks(
    dim3 grid, dim3 block, uint64_t first, uint64_t last, A... args) {{
  for (uint64_t b = first; b < last; ++b) {{
    const uint3 at{{uint32_t(b % grid.x), uint32_t(b / grid.x % grid.y),
                   uint32_t(b / grid.x / grid.y)}};
    for (unsigned z = 0; z < block.z; ++z)
      for (unsigned y = 0; y < block.y; ++y)
        for (unsigned x = 0; x < block.x; ++x) {{
          cuda_thread one{{{{x, y, z}}, at, block, grid}};
          (one.*kernel)(args...);
        }}
  }}
}}
template <auto kernel, class... A, size_t... K> static void run(
    void (cuda_thread::*)(A...), std::index_sequence<K...>,
    const launch_record &r, uint64_t first, uint64_t last) {{
  static_assert(sizeof...(A) == {count}, "its arguments are not the {count} of its "
                "signature");
{asserts}
  run_blocks<kernel, A...>({{r.grid[0], r.grid[1], r.grid[2]}},
                           {{r.block[0], r.block[1], r.block[2]}}, first, last,
                           slot<A>(r, K)...);
}}
extern "C" void cuda_launch(void *, void *record) {{
  const launch_record &r = *static_cast<const launch_record *>(record);
  const uint64_t blocks = uint64_t(r.grid[0]) * r.grid[1] * r.grid[2];
  const uint64_t parts = std::max<uint64_t>(1, std::min(r.num_threads, blocks));
  auto part = [&](uint64_t p) {{
    // Quotient and remainder apart: blocks * p could be more than 64 bits.
    auto start = [&](uint64_t q) {{
      return blocks / parts * q + blocks % parts * q / parts;
    }};
    constexpr auto kernel = &cuda_thread::{name};
    run<kernel>(kernel, std::make_index_sequence<{count}>(), r, start(p), start(p + 1));
  }};
  std::vector<std::thread> threads;
  uint64_t p = 1;
  try {{
    for (; p < parts; ++p) threads.emplace_back(part, p);
  }} catch (const std::system_error &) {{
    // No more threads are to be had: this one does their parts too.
  }}
  part(0);
  for (; p < parts; ++p) part(p);
  for (std::thread &thread : threads) thread.join();
}}
"""


def cpp_source(source: str, name: str, parameters: Sequence[Parameter]) -> str:
    """C++17 that runs kernel `name` of the CUDA C `source` for every thread of a grid.

    It defines ``cuda_launch(void *, launch_record *)``, which
    :meth:`d2lpar.kernels.on_cpu.CpuKernel.launch` calls. Compile errors name lines of
    `source`; parameters that differ from the signature are compile errors. Raises
    :class:`KernelError` for what :func:`check_runs_on_a_cpu` refuses, and for a name
    that no kernel in the source has.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*(<[\w\s,*]+>)?", name):
        raise KernelError(f"kernel {name!r}: not a name that a kernel can have")
    # Comments become spaces, so that every line keeps its number.
    code = _COMMENT_OR_STRING.sub(
        lambda m: m[1] or re.sub(r"[^\n]+", " ", m[0]), source
    )
    check_runs_on_a_cpu(code, name)
    names = _KERNEL_NAMES.findall(code)
    if name.partition("<")[0] not in names and "#define" not in code:
        raise KernelError(
            f"kernel {name}: the source has no such __global__ function, but "
            f"{', '.join(names) or 'none at all'}"
        )
    include = re.compile(r"^[ \t]*#[ \t]*include\b.*$", re.MULTILINE)
    return _AROUND.format(
        prelude=_PRELUDE,
        includes="\n".join(include.findall(code)),
        file=re.sub(r"\W", "_", name) + ".cu",
        body=_without_extern_c(include.sub("", code)),
        name=name,
        count=len(parameters),
        asserts="\n".join(
            f"static_assert(agree<std::tuple_element_t<{k}, std::tuple<A...>>, "
            f"{p.ctype}{' const' * p.const}{' *' * p.pointer}>(), "
            f'"its argument {k + 1} is not {str(p)!r}, as the signature says");'
            for k, p in enumerate(parameters)
        ),
    )


def _without_extern_c(code: str) -> str:
    """Without `extern "C"` and its braces: members of a class have no linkage."""
    block = re.compile(r'extern\s*"C"\s*\{')
    while match := block.search(code):
        depth, end = 1, match.end()
        while depth and end < len(code):
            depth += {"{": 1, "}": -1}.get(code[end], 0)
            end += 1
        inner = code[match.end() : end - 1]
        newlines = "\n" * match[0].count("\n")
        code = code[: match.start()] + newlines + inner + code[end:]
    return re.sub(r'extern\s*"C"', "", code)
