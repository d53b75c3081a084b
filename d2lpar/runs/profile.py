"""Where a run's time goes: in Python by cProfile, on the devices by MXNet's profiler.

The least-squares notes profile with cProfile alone. MXNet computes behind Python's
back, so that cProfile attributes the time of all devices to the calls that wait for
them. Which operator took it is in MXNet's trace, with one row per device's worker.
"""

from __future__ import annotations

import cProfile
import io
import pstats
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from d2lpar._mxnet import mx, npx
from d2lpar.records.atomic import replacing


def profiled(lines: Iterator, stem: Path) -> Iterator:
    """Pass `lines` on, and profile the work that makes them.

    Writes ``<stem>.profile.txt``, cProfile's table, and ``<stem>.trace.json``, which a
    trace viewer opens (chrome://tracing, ui.perfetto.dev). What is profiled is slower:
    its times must not pass for measurements.
    """
    profile = cProfile.Profile()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        mx.profiler.set_config(profile_all=True, filename=str(trace))
        mx.profiler.set_state("run")
        while True:
            profile.enable()
            try:
                line = next(lines)
            except StopIteration:
                break
            finally:
                profile.disable()
            yield line
        npx.waitall()
        mx.profiler.set_state("stop")
        mx.profiler.dump()
        with replacing(stem.with_name(f"{stem.name}.trace.json")) as tmp:
            shutil.copyfile(trace, tmp)
    with replacing(stem.with_name(f"{stem.name}.profile.txt")) as table:
        table.write_text(cumulative_table(profile), encoding="utf-8")


def cumulative_table(profile: cProfile.Profile, rows: int = 40) -> str:
    """The functions that took longest, with what they called."""
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats("cumulative").print_stats(rows)
    return text.getvalue()
