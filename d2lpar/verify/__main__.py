"""`d2lpar verify` where nothing but NumPy and a framework is installed.

python -m d2lpar.verify STEP.py
python -m d2lpar.verify --run "train.py --batch-size 64" --with "--batch-size 32"
"""

from __future__ import annotations

import argparse
import sys

from d2lpar.errors import D2lparError
from d2lpar.verify import STATUS, verify


def main() -> int:
    """Judge a step or a program, print the checks, and return the exit status."""
    parser = argparse.ArgumentParser("python -m d2lpar.verify", epilog="docs/verify.md")
    parser.add_argument("path", metavar="STEP.py", nargs="?")
    parser.add_argument("--run", metavar="COMMAND", help="of a program, on one process")
    parser.add_argument("--with", dest="replaced", default="", help="on several")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--even", action="store_true")
    parser.add_argument("--timeout", type=float, help="seconds for a call, or a run")
    args = parser.parse_args()
    if (args.path is None) == (args.run is None):
        parser.error("name a STEP.py, or a program by --run")
    how = {} if args.timeout is None else {"timeout": args.timeout}
    try:
        if args.run:
            from d2lpar.verify.torch.program import judge_program

            checks = judge_program(args.run, args.devices, args.replaced, **how)
        else:
            how |= {"seed": args.seed, "even": args.even}
            checks = verify(args.path, args.devices, args.batch, **how)
    except D2lparError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    for check in checks:
        print(f"{check.verdict:9}{check.what}: {check.line}")
    return STATUS[checks[-1].verdict]


if __name__ == "__main__":
    sys.exit(main())
