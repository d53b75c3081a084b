"""Python and the command line, in a process of its own."""

import os
import subprocess
import sys


def python(code, *words, **environment):
    """What Python prints that runs the code, which must not fail."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def d2lpar(*words, before="pass", **how):
    """Run a command of d2lpar in a process of its own, after the code `before`."""
    code = f"{before}\nfrom d2lpar.cli import main; main.main()"
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, **how)
