"""The command `d2lpar verify`, and `python -m d2lpar.verify` beside NumPy alone."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import NoReturn

from d2lpar.errors import D2lparError, SettingError
from d2lpar.text import filled, printable
from d2lpar.verify import STATUS, verify
from d2lpar.verify.program import judge_program

NOT_SEEN = (
    "Not seen by comparing 1 with N: a missing set_epoch or unscale_, a mistake that "
    "one device makes, too, an evaluation over devices that counts padded rows, the "
    "short last accumulation of an epoch."
)


def refuse(message: str) -> NoReturn:
    """Raise SettingError: one line, without the usage of all options."""
    raise SettingError(message)


def main(words: list[str] | None = None, name="d2lpar verify") -> int:
    """Judge a step or a program, print the checks, and return the exit status."""
    parser = argparse.ArgumentParser(
        name,
        description="Judge STEP.py, or a whole PyTorch program: is its step on several "
        "devices that of one? If it is not, the mistake is named.",
        epilog="Exit status: 0 right, 1 wrong, 2 not judged. See docs/verify.md.",
    )
    parser.error = refuse  # type: ignore[assignment]
    parser.add_argument("path", metavar="STEP.py", nargs="?")
    parser.add_argument("--run", metavar="COMMAND", help="Command of one process.")
    words_help = "Arguments that several processes have instead."
    parser.add_argument("--with", dest="replaced", metavar="ARGS", help=words_help)
    parser.add_argument("--devices", type=int, default=2, help="Number of devices.")
    parser.add_argument("--batch", type=int, default=64, help="Samples in a batch.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the first batch.")
    parser.add_argument("--even", action="store_true", help="Even batches only.")
    parser.add_argument("--timeout", type=float, help="Seconds for a call, or a run.")
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    args = parser.parse_args(words)
    if args.devices < 2 or args.batch < 1:
        refuse("--devices is at least 2, and --batch at least 1")
    if (args.path is None) == (args.run is None):
        refuse("no step: d2lpar verify ddp.py (docs/verify.md has this file), or --run")
    if args.run is not None:
        how = (args.run, args.devices, args.replaced)
        checks = judge_program(*how, timeout=args.timeout or 300)
    else:
        path = Path(args.path)
        if not path.is_file() or path.suffix != ".py" or "." in path.stem:
            refuse(f"{path}: no file NAME.py, without another dot")
        if path.stem in getattr(sys, "stdlib_module_names", sys.builtin_module_names):
            refuse(f"{path}: Python has a module {path.stem}; rename the file")
        how = (path, args.devices, args.batch)
        rest = {"seed": args.seed, "even": args.even, "timeout": args.timeout or 60}
        checks = verify(*how, **rest)
    if args.json:
        print(json.dumps([check._asdict() for check in checks], indent=1))
    else:
        for check in checks:
            line = printable(f"{check.what}: {check.line}")
            print(filled(line, f"{check.verdict:9}"))
        if checks[-1].verdict == "right":
            print(filled(NOT_SEEN))
    return STATUS[checks[-1].verdict]


if __name__ == "__main__":
    try:
        sys.exit(main(name="python -m d2lpar.verify"))
    except D2lparError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
