"""Milliseconds of y = 2 x and of SGD's update: kernel, MXNet, NumPy, a loop in C.

    python benchmarks/kernels.py --rounds 3
    python benchmarks/kernels.py --redraw      (the record's picture, unmeasured)

Every arrangement of contexts and threads is measured in a fresh process, round after
round, the ways taking turns within it (see d2lpar.studies.kernel_times), and every answer is
compared with NumPy's. Writes kernels.jsonl (a header, then a line for each round and
way), kernels.png and .svg to figures/benchmarks. Prints how a kernel's time compares
with that of the loop in C on the same threads, which is the limit of the memory.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from tqdm import tqdm

from d2lpar import devices
from d2lpar.figures import page
from d2lpar.machine import cores as machine_cores
from d2lpar.records import summary as records_summary
from d2lpar.records import wording
from d2lpar.runs import in_turn

HERE = Path(__file__).resolve()
WORKS = {"x2": "y = 2 x", "update": "p -= step * grad"}
WAYS = ("loop in C", "kernel", "MXNet", "NumPy")


def child(num_devices: int, n: int, repeats: int) -> None:
    """Measure one arrangement, and print its samples as JSON."""
    from d2lpar.studies import kernel_times

    times = kernel_times.times(devices.parse(f"cpu:{num_devices}"), n, repeats)
    lines = [
        {"work": work, "way": way, "seconds": seconds}
        for (work, way), seconds in times.items()
    ]
    print("\n" + json.dumps(lines))


def measure(num_devices: int, threads: int, n: int, repeats: int) -> list[dict]:
    """Lines of one arrangement, measured in a process of its own."""
    from d2lpar.runs.job import KEEP_FREED_MEMORY

    environment = {**os.environ, **KEEP_FREED_MEMORY, "OMP_NUM_THREADS": str(threads)}
    environment["PYTHONPATH"] = str(HERE.parents[1])
    command = [sys.executable, str(HERE), "--child", str(num_devices)]
    command += ["-n", str(n), "--repeats", str(repeats)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise SystemExit(f"{num_devices} contexts, {threads} threads: {last}")
    arrangement = {"devices": num_devices, "threads": threads}
    return [
        {"kind": "samples", **arrangement, **line}
        for line in json.loads(done.stdout.splitlines()[-1])
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=7, help="samples of a round")
    parser.add_argument(
        "-n", type=int, default=50_000_000, help="float32 a context; the seed's number"
    )
    parser.add_argument("--out", type=Path, default=Path("figures/benchmarks"))
    parser.add_argument(
        "--redraw",
        action="store_true",
        help="draw the record in --out, measure nothing",
    )
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, args.n, args.repeats)
        return
    if args.redraw:
        text = (args.out / "kernels.jsonl").read_text(encoding="utf-8")
        header, *lines = map(json.loads, text.splitlines())
        report(header, lines, args.out)
        return

    from d2lpar.kernels.on_cpu import FLAGS, compiler

    cores = machine_cores.usable_cores()
    header = {
        **in_turn.header("kernels", "y = 2 x and the update of SGD"),
        "n": args.n,
        "compiler": shlex.join([*map(os.path.basename, compiler()), *FLAGS]),
    }
    arrangements = list(dict.fromkeys([(1, 1), (1, cores), (cores, 1)]))
    lines = []
    with tqdm(total=args.rounds * len(arrangements), unit="process") as bar:
        for round_ in range(args.rounds):
            for arrangement in arrangements:
                found = measure(*arrangement, args.n, args.repeats)
                lines += [{**line, "round": round_} for line in found]
                bar.update()
    in_turn.write(header, lines, args.out)
    report(header, lines, args.out)


def name_of(line: dict) -> str:
    return (
        f"{wording.plural(line['devices'], 'context')}, "
        f"{wording.plural(line['threads'], 'thread')} each"
    )


def report(header: dict, lines: list[dict], out: Path) -> None:
    """Print the medians of a record's lines over its rounds, and draw them."""
    samples: dict = {}
    for line in lines:
        key = (name_of(line), line["work"], line["way"])
        samples.setdefault(key, []).extend(1e3 * s for s in line["seconds"])
    found = {key: records_summary.summarize(values) for key, values in samples.items()}
    for (where, work, way), summary in found.items():
        loop = found[where, work, "loop in C"].median
        print(
            f"{where:27} {work:7} {way:10} {summary} ms, "
            f"{summary.median / loop:.2f} of the loop in C"
        )
    with page.plain_style():
        page.save({"kernels": draw(found, header)}, out)


def draw(found: dict, header: dict):
    """A panel for each work: bars for each arrangement and way, quartiles as lines."""
    arrangements = list(dict.fromkeys(where for where, _, _ in found))
    new = page.new_page(
        "A kernel in CUDA C on CPU contexts beside MXNet, NumPy and a loop in C",
        f"{header['n']:,} float32 a context, all "
        "contexts at once. Left: y = 2 x (NumPy has one thread and one context's "
        "numbers). Right: the update of SGD, one pass in the kernel, two operators in "
        "MXNet. The loop in C has the threads of the kernel and is the limit of the "
        "memory. Bars are medians, lines quartiles. Hardware: "
        f"{header['cpu_model']}, {header['cores']} cores. {header['compiler']}. "
        f"{header['date'][:10]}, commit "
        f"{(header['git_commit'] or 'not recorded')[:7]}.",
        panels=len(WORKS),
    )
    for axes, (work, title) in zip(new.axes, WORKS.items()):
        y, names, middles = 0.0, [], []
        for where in arrangements:
            top = y
            for k, way in enumerate(WAYS):
                summary = found.get((where, work, way))
                if summary is None:
                    continue
                axes.barh(
                    y, summary.median, color=page.COLORS[k], hatch=page.HATCHES[k],
                    edgecolor="white", linewidth=0,
                )  # fmt: skip
                axes.plot([summary.q1, summary.q3], [y, y], color="black", lw=1.2)
                end = max(summary.q3, summary.median)
                axes.text(end, y, f" {way}: {summary.median:.1f}", va="center", size=8)
                y += 1
            names.append(where.replace(", ", ",\n"))
            middles.append((top + y - 1) / 2)
            y += 0.8
        most = max(s.q3 for (_, w, _), s in found.items() if w == work)
        axes.set_xlim(0, 1.5 * most)  # room for the words
        axes.set_yticks(middles, names, size=8, rotation=90, va="center")
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")
        axes.invert_yaxis()
        axes.set_xlabel(f"{title}: milliseconds")
    return new.figure


if __name__ == "__main__":
    main()
