"""The command line, in a process of its own."""

import subprocess
import sys


def d2lpar(*words, before="pass", **how):
    """Run a command of d2lpar in a process of its own, after the code `before`."""
    code = f"{before}\nfrom d2lpar.cli import main; main.main()"
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, **how)
