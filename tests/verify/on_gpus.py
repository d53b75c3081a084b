"""Judge programs on two GPUs with NCCL, some right and some wrong, and a whole program.

    python tests/verify/on_gpus.py

It needs PyTorch and NumPy. With D2LPAR_BACKEND=gloo it runs on CPUs. Exit status 1:
not as expected.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

SUBJECTS = Path(__file__).parent / "subjects"
ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {
    "ddp": "right",
    "fsdp2": "right",
    "tokens": "right",
    "autocast": "right",
    "mean_of_means": "the mean gradients of the devices are averaged",
    "tokens_of_each": "divides by the number of its own tokens",
    "clips_pieces": "clipped after each accumulated piece",
    "pieces_not_summed": "is that of device 0 alone",
    "bfloat16_hook": "that of 16 bits",
}
WHOLE = {"": "right", "--scale-rate": "2 times as large", "--around": "wrapped module"}


def printed(command: list, **variables) -> tuple[int, str]:
    """Run `python -m d2lpar.verify`; return its status and what it printed."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "d2lpar.verify", "--timeout", "150", *command],
        cwd=SUBJECTS,
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr[-2000:]


def main() -> int:
    import torch

    backend = os.environ.setdefault("D2LPAR_BACKEND", "nccl")
    if backend == "nccl" and torch.cuda.device_count() < 2:
        print("two GPUs are needed")
        return 2
    print(f"PyTorch {torch.__version__}, {backend}", flush=True)
    unexpected = 0
    runs = [(f"D2LPAR_PROGRAM={p}", ["steps_torch.py"], {"D2LPAR_PROGRAM": p}, e)
            for p, e in PROGRAMS.items()]  # fmt: skip
    for flag, expected in WHOLE.items():
        command = f"whole_torch.py --batch-size 64 {flag}".strip()
        words = ["--run", command, "--with", "--batch-size 32"]
        runs.append((" ".join(words), words, {}, expected))
    for title, words, variables, expected in runs:
        if backend != "nccl" and "bfloat16_hook" in title:
            continue  # gloo has no bfloat16
        status, text = printed(words, **variables)
        print(f"\n{title}\n{text}", flush=True)
        right = re.search(r"^right +summary", text, re.M) and status == 0
        if not (right if expected == "right" else expected in text and status == 1):
            unexpected += 1
            print(f"UNEXPECTED: not {expected!r}", flush=True)
    if backend == "nccl":
        print(f"2 x {torch.cuda.get_device_name(0)}")
    return min(1, unexpected)


if __name__ == "__main__":
    sys.exit(main())
