"""Judge DDP on two GPUs with NCCL: one right program, and three wrong ones.

    python tests/verify/on_gpus.py

Needs PyTorch and NumPy, and none of d2lpar's other requirements: the package's own
`__init__` is left out.
"""

import os
import sys
import types
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = (
    "torch_ddp",
    "torch_mean_of_means",
    "torch_norm_twice",
    "torch_pieces_not_summed",
)

if __name__ == "__main__":
    package = types.ModuleType("d2lpar")
    package.__path__ = [str(ROOT / "d2lpar")]
    sys.modules["d2lpar"] = package
    from d2lpar.verify import verify

    os.environ["D2LPAR_BACKEND"] = "nccl"
    for name in PROGRAMS:
        path = ROOT / "tests" / "verify" / "subjects" / f"{name}.py"
        print(f"{name}.py")
        for check in verify(path, 2, timeout=120):
            print(f"{check.verdict:9}{check.what}: {check.line}", flush=True)
        print()
