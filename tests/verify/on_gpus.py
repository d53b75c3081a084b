"""Judge DDP on two GPUs with NCCL: a right program, and three wrong ones.

    python tests/verify/on_gpus.py

Run it from anywhere with PyTorch and NumPy; no other requirement of d2lpar is needed,
because the package's own `__init__` is left out. Exit status 1: not as expected.
"""

import importlib
import os
import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {
    "torch_ddp": "right",
    "torch_mean_of_means": "mean of means",
    "torch_norm_twice": "norm twice",
    "torch_pieces_not_summed": "piece not summed",
}


def main() -> int:
    package = types.ModuleType("d2lpar")
    package.__path__ = [str(ROOT / "d2lpar")]
    sys.modules["d2lpar"] = package
    import torch

    from d2lpar.verify import verify

    backend = os.environ.setdefault("D2LPAR_BACKEND", "nccl")
    count = torch.cuda.device_count() if backend == "nccl" else 2
    if count < 2:
        print(f"{count} GPUs: two are needed")
        return 2
    print(f"PyTorch {torch.__version__}, {backend}", flush=True)
    sys.path.insert(0, str(Path(__file__).parent / "subjects"))
    unexpected = 0
    for program, expected in PROGRAMS.items():
        print(f"\n{program}.py")
        checks = verify(importlib.import_module(program), 2)
        for check in checks:
            print(f"{check.verdict:9}{check.what}: {check.line}", flush=True)
        if expected not in (checks[-1].verdict, checks[-1].mistake):
            unexpected += 1
            print(f"UNEXPECTED: not {expected!r}")
    if backend == "nccl":  # not before processes are forked
        print(f"\n2 x {torch.cuda.get_device_name(0)}")
    return min(1, unexpected)


if __name__ == "__main__":
    sys.exit(main())
