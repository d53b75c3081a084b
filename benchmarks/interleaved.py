"""Arms of a benchmark in fresh processes, one after the other, round after round.

A B C A B C: a machine that drifts drifts for all. An arm is a command that prints a
JSON line, with its "seconds", for each thing that it timed; the first `warm_up` lines
of each process do not count. An arm that cannot run is a line that says so.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from d2lpar import devices, records, timing

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = ("d2lpar", "mxnet", "numpy", "torch", "d2l")


class Arm(NamedTuple):
    """A command, what it adds to the environment, and whether it is a peer's."""

    command: list[str]
    environment: dict[str, str]
    is_peer: bool


def ours(code: str, threads: int, *arguments: object) -> Arm:
    """Python code of ours, as the runner starts it: so many threads a context."""
    from d2lpar.runner import KEEP_FREED_MEMORY

    environment = {**KEEP_FREED_MEMORY, "OMP_NUM_THREADS": str(threads)}
    return Arm([sys.executable, "-c", code, *map(str, arguments)], environment, False)


def peer(script: str, *arguments: object) -> Arm:
    """A script in peers/, in its own default environment."""
    path = str(ROOT / "peers" / script)
    return Arm([sys.executable, path, *map(str, arguments)], {}, True)


def measure(arms: dict[str, Arm], rounds: int, warm_up: int = 1):
    """Lines for the record, and the seconds that count by arm."""
    lines, seconds = [], {}
    with tqdm(total=rounds * len(arms), unit="process") as bar:
        for round_ in range(rounds):
            for name, arm in arms.items():
                bar.set_description(name)
                samples, problem = _run(arm)
                if problem:
                    lines.append({"kind": "absent", "arm": name, "why": problem})
                for number, sample in enumerate(samples):
                    lines.append(
                        {"kind": "sample", "arm": name, "round": round_, **sample}
                    )
                    if number >= warm_up:
                        seconds.setdefault(name, []).append(sample["seconds"])
                bar.update()
    return lines, seconds


def _run(arm: Arm) -> tuple[list[dict], str | None]:
    env = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    env["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        arm.command, env={**env, **arm.environment}, capture_output=True, text=True
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return [], f"did not run: {last}"
    return [json.loads(line) for line in done.stdout.splitlines()], None


def header(benchmark: str, work: str) -> dict:
    """Where the record comes from."""
    versions = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    commit, dirty = records.git_state()
    script = f"benchmarks/{benchmark}.py"
    return {
        "kind": "header",
        "benchmark": benchmark,
        "command": shlex.join(["python", script, *sys.argv[1:]]),
        "work": work,
        "cpu_model": devices.cpu_model(),
        "cores": devices.usable_cores(),
        "versions": versions,
        "git_commit": commit,
        "git_dirty": dirty,
        "date": records.now(),
    }


def write(header: dict, lines: list[dict], out: Path) -> None:
    """The record: <benchmark>.jsonl in the folder `out`, atomically."""
    with records.replacing(out / f"{header['benchmark']}.jsonl") as tmp:
        tmp.write_text("".join(json.dumps(line) + "\n" for line in [header, *lines]))


def report(
    header: dict, arms: dict[str, Arm], lines: list[dict], seconds: dict, out: Path
) -> None:
    """Write <benchmark>.jsonl, .png and .svg, and print a line an arm."""
    write(header, lines, out)
    for arm in arms:
        text = timing.summarize(seconds[arm]) if arm in seconds else "not measured"
        print(f"{arm:52}", text, "s")
    _draw(header, arms, seconds, out / header["benchmark"])


def _draw(header: dict, arms: dict[str, Arm], seconds: dict, stem: Path) -> None:
    from matplotlib.figure import Figure

    names = [name for name in arms if name in seconds]
    summaries = [timing.summarize(seconds[name]) for name in names]
    figure = Figure(figsize=(9, 0.6 * len(names) + 1.2), layout="constrained")
    axes = figure.subplots()
    spread = [
        [s.median - s.q1 for s in summaries],
        [s.q3 - s.median for s in summaries],
    ]
    axes.barh(
        names,
        [s.median for s in summaries],
        xerr=spread,
        color=["#999999" if arms[name].is_peer else "#0072b2" for name in names],
        capsize=3,
    )
    for row, (name, s) in enumerate(zip(names, summaries)):
        axes.plot(seconds[name], [row] * s.n, "k.", markersize=3)
        axes.annotate(
            f"{s.median:.3g} s (n={s.n})",
            (0, row), (4, 0), textcoords="offset points",
            va="center", color="white", fontweight="bold",
        )  # fmt: skip
    axes.invert_yaxis()
    axes.set_xlabel("seconds (median and quartiles; dots: samples)")
    axes.set_title(f"{header['work']}: ours (blue) and peers (grey)", fontsize=10)
    libraries = ", ".join(
        f"{library} {header['versions'][library]}" for library in LIBRARIES[1:]
    )
    figure.text(
        0.5,
        -0.05,
        f"{header['cpu_model']}, {header['cores']} cores; {libraries}; "
        f"{header['date'][:10]}",
        ha="center",
        fontsize=8,
    )
    for ending in ("png", "svg"):
        with records.replacing(stem.with_suffix(f".{ending}")) as tmp:
            figure.savefig(tmp, dpi=150, bbox_inches="tight")
