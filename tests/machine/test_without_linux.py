"""What only Linux has is taken away: the main job runs without it, as on a Mac.

Nothing was run on a Mac itself.
"""

import os
import subprocess
import sys
from pathlib import Path

# In every process of the run: no /proc and no control groups for our own code, and
# no program on the PATH. (NVML is not here anyway.)
TAKEN_AWAY = """
import builtins, io, sys

def opened(file, *args, _open=builtins.open, **kwargs):
    if str(file).startswith(("/proc", "/sys")):
        frame = sys._getframe(1)
        while frame.f_globals.get("__name__", "").startswith("pathlib"):
            frame = frame.f_back
        if frame.f_globals.get("__name__", "").startswith("d2lpar"):
            raise FileNotFoundError(2, "No such file or directory", str(file))
    return _open(file, *args, **kwargs)

builtins.open = io.open = opened
"""


def run(words, folder):
    (folder / "sitecustomize.py").write_text(TAKEN_AWAY)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parents[2])]),
        "PATH": str(folder),
    }
    return subprocess.run(
        [sys.executable, "-m", "d2lpar", *words],
        capture_output=True, text=True, env=environment, cwd=folder, timeout=300,
    )  # fmt: skip


def test_the_main_job_needs_nothing_that_only_linux_has(tmp_path):
    for words in (
        ["devices"],
        ["run", "multiple_gpus", "--dry-run", "--data=sample", "--devices=cpu:2"],
        ["run", "least_squares", "--dry-run", "--devices=cpu:2"],
    ):
        done = run(words, tmp_path)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
