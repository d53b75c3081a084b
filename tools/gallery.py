"""Measure the gallery, draw its pictures, and write the tables of figures/*.md.

    python tools/gallery.py            what has no record of this version; all pictures
    python tools/gallery.py --list     the parts, their commands, and the time they take
    python tools/gallery.py --draw     pictures and tables of the records that are there
    python tools/gallery.py --check    what disagrees with the records; exit 1 if any
    python tools/gallery.py scaling timing          some parts only
    python tools/gallery.py --devices gpu:2         the parts of two GPUs
    python tools/gallery.py --devices gpu:2 scratch

Only this writes to figures/. The machine must have nothing else to do. A command whose
records are of this version of d2lpar is skipped, so that a part can be interrupted and
repeated. The parts of two GPUs come in the order of their worth, each of at most 8
minutes. Records of other commands are drawn, not measured. Needs the data sets
(D2LPAR_DATA), and a clean checkout.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).parents[1]))  # where d2lpar is not installed
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import arms
import gallery_tables
from gallery_pictures import FIGURES, PICTURES
from matplotlib import rc_context
from PIL import Image, PngImagePlugin

from d2lpar import __version__, experiments
from d2lpar.errors import D2lparError, RecordError, RunError
from d2lpar.figures import page
from d2lpar.gan import figure as gan
from d2lpar.records import files, labels
from d2lpar.records.kinds import Header, Run, group

ROOT = Path(__file__).parents[1]


class Step(NamedTuple):
    """A command, and the records that it writes below figures/."""

    command: str
    records: tuple[str, ...]


class Part(NamedTuple):
    """A part of the gallery: its steps, and the minutes that they take."""

    name: str
    minutes: int
    steps: tuple[Step, ...]


def run_of(words: str, chapter: str, *names: str, minutes: int, name: str = "") -> Part:
    """A part of one `d2lpar run` of the book preset."""
    records = tuple(f"{chapter}/{record}.jsonl" for record in names)
    command = f"d2lpar run {chapter} --preset=book {words} --out=figures"
    return Part(name or chapter, minutes, (Step(command, records),))


def seeds_of(chapter: str, words: str, kind: str, folder: str) -> tuple[Step, ...]:
    """The trainings of a chapter with five seeds, on one device and on two."""
    words = f"{words} --num-devices=1,2 --preset=book --data=fashion-mnist"
    stems = ["book", *(f"book-seed{seed}" for seed in range(1, 5))]
    return tuple(
        Step(f"d2lpar run {chapter} --seeds={seed} {words} --out=figures/{folder}",
             tuple(f"{folder}/{chapter}/{stem}-{kind}{n}.jsonl" for n in (1, 2)))
        for seed, stem in enumerate(stems)
    )  # fmt: skip


def benchmark(name: str, minutes: int, words: str, folder: str = "benchmarks") -> Part:
    """A part of one script of benchmarks/."""
    command = f"python benchmarks/{name}.py {words} --out=figures/{folder}"
    return Part(
        f"benchmarks/{name}", minutes, (Step(command, (f"{folder}/{name}.jsonl",)),)
    )


def parts() -> list[Part]:
    """All of the gallery that CPU contexts measure, in the order of its README."""
    data, two = "--data=fashion-mnist", "--num-devices=1,2"
    trainings = []
    for chapter in ("multiple_gpus", "multiple_gpus_concise"):
        seeds = seeds_of(chapter, "", "cpu", "seeds")
        names = ["book-1thread-cpu1", "book-1thread-cpu2"]
        trainings += [
            Part(f"{chapter}, five seeds", 30, seeds),
            run_of(f"{two} {data} --threads=1", chapter, *names, minutes=7,
                   name=f"{chapter}, one thread"),
        ]  # fmt: skip
    methods = ("averaging", "averaging-as-published", "cgls", "normal")
    solved = [
        f"book-1thread-{method}-cpu{n}" for method in (*methods, "tsqr") for n in (1, 2)
    ]
    steps = ["book-1thread-scratch-cpu2", "book-1thread-concise-cpu2"]
    peers = "python benchmarks/peers.py --preset=book --rounds=4 --num-epochs=1 "
    peers += f"{two} --out=figures/peers"
    return [
        *trainings,
        run_of(f"{two} --repeats=4 --threads=1", "least_squares", *solved, minutes=15),
        run_of(f"{data} {two} --repeats=4", "scaling", *steps, minutes=25),
        run_of("", "timing", "book-cpu1", "book-cpu2", minutes=23),
        run_of(f"{data} --num-devices=1 --threads=1", "low_precision",
               "book-1thread-cpu1", minutes=7),
        Part("peers", 34, (Step(peers, ("peers/custom-cpu2.jsonl",)),)),
        benchmark("kernels", 3, "--rounds 4"),
        benchmark("equivalence", 20, "--rounds 3"),
        benchmark("memory", 4, "--rounds 4"),
        benchmark("least_squares", 20, "--rounds 4 --repeats 5",
                  "benchmarks/same_method"),
    ]  # fmt: skip


def on_gpus() -> list[Part]:
    """What two GPUs measure, in the order of its worth."""
    two = "--devices=gpu:2"
    counts = f"{two} --num-devices=1,2 --preset=book --data=fashion-mnist"
    study = Step(
        f"d2lpar run scaling {counts} --repeats=4 --out=figures/gpus",
        tuple(
            f"gpus/scaling/book-1thread-{variant}-gpu2.jsonl"
            for variant in ("scratch", "concise")
        ),
    )
    gluon, seeds = "multiple_gpus_concise", "gpus/seeds"
    # In equal forms: one GPU and two, each with and without a graph.
    no_graph = Step(
        f"MXNET_ENABLE_CUDA_GRAPHS=0 d2lpar run {gluon} {counts} "
        "--out=figures/gpus/no_graph",
        tuple(f"gpus/no_graph/{gluon}/book-gpu{n}.jsonl" for n in (1, 2)),
    )
    # A process takes about 14 s, most of it to start: one times several epochs.
    run = f"python benchmarks/peers.py --preset=book {two} --rounds=4 --ours=concise"
    ways = {
        "pytorch_loop,jax_loop --num-devices=1": ("one", 1),
        "ddp,jax_loop --num-devices=2": ("two", 2),
    }
    recipes = {
        "": ("--forms=eager,graph,scan --num-epochs=8", 3),
        "_8192": ("--forms=graph,scan --num-epochs=130 --global-batch-size=8192", 4),
    }
    beside = [
        Part(f"peers, {count}{size and ' of 8,192'}", minutes, (Step(
            f"{run} --peers={which} {recipe} --out=figures/gpus/peers{size}/{count}",
            (f"gpus/peers{size}/{count}/custom-gpu{n}.jsonl",),
        ),))
        for size, (recipe, minutes) in recipes.items()
        for which, (count, n) in ways.items()
    ]  # fmt: skip

    return [
        # All that was timed with a copy of the batch to the host.
        Part("scratch", 8, (*seeds_of("multiple_gpus", two, "gpu", seeds), study)),
        Part("Gluon, five seeds", 2, seeds_of(gluon, two, "gpu", seeds)),
        Part("Gluon, no graph", 1, (no_graph,)),
        *beside,
    ]


def why_to_measure(path: Path) -> str:
    """Why a record must be measured again, in a few words; "" if it need not be."""
    if not path.exists():
        return "not measured"
    header = files.read(path).header
    if header.git_dirty or not header.git_commit:
        return "measured by code that was not committed"
    if header.versions["d2lpar"] != __version__:
        return f"measured by version {header.versions['d2lpar']}"
    return ""


def due(part: Part) -> dict[Step, str]:
    """The steps of a part that must be measured, and why."""
    steps = {}
    for step in part.steps:
        whys = filter(None, (why_to_measure(FIGURES / name) for name in step.records))
        if why := next(whys, ""):
            steps[step] = why
    return steps


def run_step(step: Step) -> None:
    """Run a step's command, and give its records their names below figures/.

    `d2lpar` writes them below runs/gallery, in a folder per recipe; so do checkpoints.
    """
    if "d2lpar " not in step.command:
        run(step.command)
        return
    begin = time.time()
    run(step.command.replace("--out=figures", "--out=runs/gallery"))
    for path in (ROOT / "runs" / "gallery").rglob("*.jsonl"):
        if path.stat().st_mtime < begin or path.name.count(".") > 1:
            continue
        # "book-1thread-cgls-cpu1" ends in "-cgls-cpu1"; "cpu1" alone fits all methods.
        names = [name for name in step.records if name.endswith(f"-{path.name}")]
        (FIGURES / min(names, key=len)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, FIGURES / min(names, key=len))


def run(command: str) -> None:
    """Run a command, which may begin with variables. Raises RunError if it fails."""
    python = {"d2lpar": [sys.executable, "-m", "d2lpar"], "python": [sys.executable]}
    kept = os.environ.get("PYTHONPATH")  # may hold d2lpar's libraries, or MXNet
    path = os.pathsep.join(filter(None, (str(ROOT), kept)))
    environment = {**os.environ, "PYTHONPATH": path}
    words = shlex.split(command)
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    full = [*python[words[0]], *words[1:]]
    if status := subprocess.run(full, cwd=ROOT, env=environment).returncode:
        raise RunError(f"{command}: ended with status {status}")


def sweeps() -> dict[str, list[Run]]:
    """The committed runs that are drawn together, by "folder/recipe".

    From scratch and Gluon share the folder of the former; so do seeds of workers.
    """
    runs = [files.read(path) for path in sorted(FIGURES.rglob("*.jsonl"))]

    def place(run: Run) -> str:
        folder, _, recipe = files.sweep_of(run)
        together = folder.relative_to(FIGURES).as_posix()
        if run.path.parent.name == "multiple_gpus_concise":
            together = together.replace("multiple_gpus_concise", "multiple_gpus")
        if run.path.parent.name == "multiple_machines" or "seeds" in folder.parts:
            recipe = re.sub(f"[-,]seed=?{run.header.seed}\\b", "", recipe)
        return f"{together}/{recipe}"

    return group(runs, place)


# Benchmarks whose table is a text, too.
BENCHMARKS = ("kernels", "least_squares", "local_sgd", "resnet18")
# A file that no record draws: times of forms of a step.
OTHER_FILES = ("gpus/step_forms.txt",)
# Sweeps whose faces are an animation.
ANIMATED = ("h200/gan/sharp", "gpus/gan/as-published")


def draw(found: dict[str, list[Run]], to: Path) -> set[Path]:
    """Draw all pictures, animations and texts in the folder `to`."""
    written = set()
    for name, drawing in PICTURES.items():
        place = to / name
        with rc_context({"savefig.dpi": 200}):  # sharp when it is enlarged
            (path,) = page.save({place.name: drawing()}, place.parent)
        reduce_colors(path)
        written.add(path)
    for sweep, runs in found.items():
        place = to / sweep
        if isinstance(runs[0].header, Header):
            result = experiments.result(runs)
            if result.further:
                texts = {f"{place.name}-results": result.full_text(labels.source(runs))}
                written |= set(page.save(texts, place.parent))
        elif runs[0].header.benchmark in BENCHMARKS:
            written |= set(page.save({place.name: arms.table(runs[0])}, place.parent))
    for sweep in ANIMATED:
        place, film = to / sweep, gan.animation(found[sweep][-1])
        written |= set(page.save({place.name: film}, place.parent))
    return written


def reduce_colors(path: Path) -> None:
    """Rewrite a picture in 256 colors, which are enough: a third of the bytes."""
    info = PngImagePlugin.PngInfo()
    for name, text in words_in(path).items():
        info.add_text(name, text)
    with Image.open(path) as whole:
        few = whole.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        dpi = whole.info["dpi"]
    few.save(path, format="png", optimize=True, dpi=dpi, pnginfo=info)


def draw_all() -> None:
    """All pictures and tables; pictures whose record is gone are deleted."""
    found = sweeps()
    written = draw(found, FIGURES)
    kept = written | {FIGURES / name for name in OTHER_FILES}
    for suffix in ("png", "svg", "gif", "txt"):
        for path in set(FIGURES.rglob(f"*.{suffix}")) - kept:
            path.unlink()
    for path in gallery_tables.pages():
        text = gallery_tables.rendered(path.read_text(encoding="utf-8"))
        path.write_text(text, encoding="utf-8")
    print(f"{len(PICTURES)} pictures, and the tables of figures/*.md", flush=True)


def words_in(path: Path) -> dict[str, str]:
    """The title and the source of a picture."""
    with Image.open(path) as picture:
        return {name: picture.info.get(name, "") for name in ("Title", "Description")}


def disagreements() -> list[str]:
    """What in figures/ and in documents is not what the records say."""
    wrong, pages = [], gallery_tables.pages()
    texts = {path: path.read_text(encoding="utf-8") for path in pages}
    for path, text in texts.items():
        if gallery_tables.rendered(text) != text:
            wrong.append(f"{path}: its tables are not those of the records")
    expected = {*pages, *FIGURES.rglob("*.jsonl")}
    expected |= {FIGURES / name for name in OTHER_FILES}
    with tempfile.TemporaryDirectory() as folder:
        for new in draw(sweeps(), Path(folder)):
            path = FIGURES / new.relative_to(folder)
            expected.add(path)
            if not path.exists():
                continue
            if path.suffix == ".png" and words_in(path) != words_in(new):
                wrong.append(f"{path}: says {words_in(path)}; records: {words_in(new)}")
            if path.suffix == ".txt" and path.read_bytes() != new.read_bytes():
                wrong.append(f"{path}: is not what the records say")
    there = {path for path in FIGURES.rglob("*") if path.is_file()}
    wrong += [f"{path}: no record draws it" for path in sorted(there - expected)]
    wrong += [f"{path}: is not there" for path in sorted(expected - there)]
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="[default: all]")
    parser.add_argument("--list", action="store_true", help="run nothing")
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument("--devices", choices=["gpu:2"], help="the parts of GPUs")
    args = parser.parse_args()
    known = {part.name: part for part in (on_gpus() if args.devices else parts())}
    if unknown := set(args.parts) - set(known):
        parser.error(f"parts {', '.join(unknown)}: write some of {', '.join(known)}")
    try:
        if args.check:
            wrong = disagreements()
            print("\n".join(wrong) or "figures/ and documents agree with the records")
            sys.exit(1 if wrong else 0)
        chosen = [known[name] for name in args.parts] or list(known.values())
        if not args.draw:
            measure_all(chosen, only_list=args.list)
        if not args.list:
            draw_all()
    except D2lparError as error:
        sys.exit(f"gallery: {error}")


def measure_all(chosen: Sequence[Part], only_list: bool) -> None:
    """Measure the parts that must be, saying why and how long it takes."""
    to_do = []
    for part in chosen:
        why = next(iter(due(part).values()), "")
        print(f"{part.minutes:4} min  {part.name}: {why or 'up to date'}")
        if only_list:
            print(*(f"          {step.command}" for step in part.steps), sep="\n")
        if why:
            to_do.append(part)
    total = sum(part.minutes for part in to_do)
    print(
        f"{len(to_do)} of {len(chosen)} parts to measure: {total} minutes", flush=True
    )
    if only_list or not to_do:
        return
    words = ["git", "status", "--porcelain", "--", ":/", ":(top,exclude)figures"]
    changes = subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout
    if changes.strip():
        raise RecordError(
            f"{changes.split()[1]}: a local change; commit it, so that records name "
            "the code that measured them"
        )
    for part in to_do:
        for step in due(part):
            started = time.monotonic()
            run_step(step)
            minutes = (time.monotonic() - started) / 60
            print(f"{minutes:.1f} min: {step.command}", flush=True)


if __name__ == "__main__":
    main()
