"""Seconds to solve least squares: our methods, NumPy, SciPy, Dask and the seed's code.

    python benchmarks/least_squares.py --rounds 2 --repeats 3
    python benchmarks/least_squares.py --redraw     (the record's picture, unmeasured)

Every arm runs in a fresh process, one after the other, round after round; in a process
the first solve warms up and does not count. The copy of A to the devices counts. Each
solve is checked: its residual must be LAPACK's to 1e-9 (the averaging methods are left
out of that, they do not converge). Writes least_squares.jsonl (a header, then a line an
arm and round), least_squares.png and .svg to figures/benchmarks. An arm whose library
is not installed is a line that says so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy
from tqdm import tqdm

from d2lpar import datasets, devices
from d2lpar.figures import page
from d2lpar.machine import cores as machine_cores
from d2lpar.records import summary, wording
from d2lpar.runs import in_turn

HERE = Path(__file__).resolve()
SEEDS_CODE = HERE.parents[1] / "peers" / "least_squares_notes.py"
LARGE = {"rows": 10_000, "columns": 1_000}
ROWS = (1_000, 10_000, 100_000, 1_000_000)  # at 100 columns
BY_ROWS = ("normal", "tsqr", "cgls", "numpy", "scipy gelsy", "dask")


def solver(arm: str, num_devices: int):
    """The function of A and b that an arm times; returns x."""
    if arm == "numpy":
        return lambda A, b: numpy.linalg.lstsq(A, b, rcond=None)[0]
    if arm == "scipy gelsy":
        import scipy.linalg

        return lambda A, b: scipy.linalg.lstsq(A, b, lapack_driver="gelsy")[0]
    if arm == "dask":
        import dask.array as da

        def lstsq(A, b):
            rows = -(-len(A) // 2)
            A = da.from_array(A, chunks=(max(rows, A.shape[1]), A.shape[1]))
            b = da.from_array(b, chunks=A.chunks[0][0])
            return da.linalg.lstsq(A, b)[0].compute()

        return lstsq
    from d2lpar.least_squares import solve

    found = devices.parse(f"cpu:{num_devices}")
    options = {"tol": 1e-10} if arm == "cgls" else {}
    return lambda A, b: solve(A, b, devices=found, method=arm, **options).x


def child(arm: str, num_devices: int, rows: int, columns: int, repeats: int) -> None:
    """Time one arm, and print its samples as JSON."""
    data = datasets.uniform_problem(rows, columns)
    try:
        solve = solver(arm, num_devices)
    except ImportError as error:
        print(json.dumps({"absent": str(error)}))
        return
    best = numpy.linalg.lstsq(data.A, data.b, rcond=None)[0]
    optimum = numpy.linalg.norm(data.A @ best - data.b)
    solve(data.A, data.b)
    samples = []
    for _ in range(repeats):
        start = time.perf_counter()
        x = solve(data.A, data.b)
        samples.append(time.perf_counter() - start)
        excess = numpy.linalg.norm(data.A @ x - data.b) / optimum - 1
        if not abs(excess) < 1e-9:
            raise SystemExit(f"{arm}: residual is off by {excess:.1e}")
    print(json.dumps({"seconds": samples}))


def averaging(epochs: int) -> None:
    """Time the seed's method on two devices, on the seed's problem."""
    from d2lpar.least_squares import solve

    data = datasets.uniform_problem(**LARGE)
    two = devices.parse("cpu:2")
    options = {"devices": two, "method": "averaging"}
    solve(data.A, data.b, num_epochs=1, **options)
    start = time.perf_counter()
    solution = solve(data.A, data.b, num_epochs=epochs, **options)
    # solution.seconds leaves the history out; the seed's code counts its own.
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": [seconds], "error": solution.residual_norm}))


def optimum(path: str) -> None:
    """The seed's problem and the error of our solution, for its code to agree with."""
    from d2lpar.least_squares import solve

    data = datasets.uniform_problem(**LARGE)
    solution = solve(data.A, data.b, devices=devices.parse("cpu:1"), method="normal")
    numpy.savez(path, A=data.A, b=data.b, optimum=solution.residual_norm)


def plan(cores: int) -> list[dict]:
    """What to measure: arm, devices, threads and size."""
    ours = [("normal", 1), ("normal", cores), ("tsqr", cores), ("cgls", cores)]
    peers = [("numpy", 0), ("scipy gelsy", 0), ("dask", 0)]
    arms = [{"arm": a, "devices": n, **LARGE} for a, n in ours + peers]
    arms += [{"arm": "averaging", "devices": 2, **LARGE}]
    arms += [{"arm": "the seed's code", "devices": 0, **LARGE}]
    for rows in ROWS:
        for arm in BY_ROWS:
            n = 0 if arm in [peer for peer, _ in peers] else cores
            arms.append({"arm": arm, "devices": n, "rows": rows, "columns": 100})
    return arms


def run(arm: dict, repeats: int, cores: int, check: Path) -> dict:
    """Measure one arm in a fresh process with one thread a context, or all cores."""
    from d2lpar.runs.job import KEEP_FREED_MEMORY

    threads = 1 if arm["devices"] else cores
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    environment["PYTHONPATH"] = str(HERE.parents[1])
    if arm["devices"]:
        environment.update(KEEP_FREED_MEMORY)
    if arm["arm"] == "the seed's code":
        command = [sys.executable, str(SEEDS_CODE), "--check", str(check)]
    else:
        command = [sys.executable, str(HERE), "--child", json.dumps(arm)]
        command += ["--repeats", str(repeats)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise SystemExit(f"{arm}: {last}")
    answer = json.loads(done.stdout.splitlines()[-1])
    if isinstance(answer.get("seconds"), float):
        answer["seconds"] = [answer["seconds"]]
    return answer


def name_of(arm: dict) -> str:
    size = f"{arm['rows']:,} x {arm['columns']:,}"
    if not arm["devices"]:
        return f"{arm['arm']}, {size}"
    return f"{arm['arm']} on {wording.plural(arm['devices'], 'context')}, {size}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3, help="solves after a warm-up")
    parser.add_argument("--out", type=Path, default=Path("figures/benchmarks"))
    parser.add_argument(
        "--redraw",
        action="store_true",
        help="draw the record in --out, measure nothing",
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--optimum", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.optimum:
        return optimum(args.optimum)
    if args.child:
        arm = json.loads(args.child)
        if arm["arm"] == "averaging":
            averaging(epochs=40)
        else:
            child(arm["arm"], arm["devices"], arm["rows"], arm["columns"], args.repeats)
        return
    if args.redraw:
        text = (args.out / "least_squares.jsonl").read_text(encoding="utf-8")
        header, *lines = map(json.loads, text.splitlines())
        report(header, lines, args.out)
        return

    cores = machine_cores.usable_cores()
    header = {
        **in_turn.header("least_squares", "min ||A x - b||"),
        "numpy": numpy.__version__,
    }
    arms, lines = plan(cores), []
    with (
        tempfile.TemporaryDirectory() as folder,
        tqdm(total=args.rounds * len(arms), unit="process") as bar,
    ):
        check = Path(folder) / "optimum.npz"
        environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
        command = [sys.executable, str(HERE), "--optimum", str(check)]
        subprocess.run(command, env=environment, check=True)
        for round_ in range(args.rounds):
            for arm in arms:
                bar.set_description(name_of(arm))
                answer = run(arm, args.repeats, cores, check)
                lines.append({"kind": "samples", "round": round_, **arm, **answer})
                bar.update()
    in_turn.write(header, lines, args.out)
    report(header, lines, args.out)


def report(header: dict, lines: list[dict], out: Path) -> None:
    """Print the medians of a record's lines over its rounds, and draw them."""
    arms, samples, medians = {}, {}, {}
    for line in lines:
        arms.setdefault(name_of(line), line)
        samples.setdefault(name_of(line), []).extend(line.get("seconds", []))
    for name, seconds in samples.items():
        if seconds:
            medians[name] = summary.summarize(seconds).median
            print(f"{name:44} {summary.summarize(seconds)} s")
        else:
            print(f"{name:44} not installed")
    with page.plain_style():
        page.save({"least_squares": draw(list(arms.values()), medians, header)}, out)


def draw(arms: list[dict], medians: dict[str, float], header: dict):
    """Bars at the seed's size, and seconds against rows at 100 columns."""
    large = [arm for arm in arms if arm["columns"] == 1_000 and name_of(arm) in medians]
    new = page.new_page(
        "Seconds to solve least squares: ours, libraries and the seed's code",
        "Left: 10,000 rows, 1,000 columns. Right: 100 columns, ours on "
        f"{wording.plural(header['cores'], 'context')}. Medians; ours with one thread "
        "a context, the others with all cores. The copy of A to the devices "
        f"counts. Hardware: {header['cpu_model']}, {header['cores']} cores. NumPy "
        f"{header['numpy']}. {header['date'][:10]}, commit "
        f"{(header['git_commit'] or 'not recorded')[:7]}.",
        panels=2,
        keys=[arm for arm in BY_ROWS if any(arm in name for name in medians)],
    )
    left, right = new.axes
    labels = [name_of(arm).partition(", ")[0] for arm in large]
    seconds = [medians[name_of(arm)] for arm in large]
    colors = [page.COLORS[0] if arm["devices"] else "0.6" for arm in large]
    left.barh(range(len(large)), seconds, color=colors)
    for row, (name, value) in enumerate(zip(labels, seconds)):
        text = f" {name}: {wording.number(value)} s"
        left.text(value, row, text, va="center", fontsize=8)
    left.set_xlim(0, max(seconds) * 2)  # room for the names
    left.set_yticks([])
    left.invert_yaxis()
    left.set_xlabel("seconds")
    lines = []
    for k, arm in enumerate(BY_ROWS):
        points = [
            (a["rows"], medians[name_of(a)])
            for a in arms
            if a["arm"] == arm and a["columns"] == 100 and name_of(a) in medians
        ]
        if points:
            style = {"color": page.COLORS[k], "ls": page.LINES[k % len(page.LINES)]}
            lines += right.plot(*zip(*points), marker=page.MARKERS[k], ms=5, **style)
    right.set_xscale("log")
    right.set_yscale("log")
    right.set_xlabel("rows")
    right.set_ylabel("seconds")
    new.legend(lines)
    return new.figure


if __name__ == "__main__":
    main()
