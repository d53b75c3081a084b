"""Measure the gallery, draw its pictures, and write the tables of figures/*.md.

    python tools/gallery.py            what has no record of this version; all pictures
    python tools/gallery.py --list     the parts, their commands, and the time they take
    python tools/gallery.py --draw     pictures and tables of the records that are there
    python tools/gallery.py --check    what disagrees with the records; exit 1 if any
    python tools/gallery.py scaling timing      some parts only
    python tools/gallery.py --devices gpu:2     the parts of two GPUs, to figures/gpus
    python tools/gallery.py --devices cpu:2     the same, tiny, to runs/rehearsal

Only this writes to figures/. The machine must have nothing else to do. A command whose
records are of this version of d2lpar is skipped, so that a part can be interrupted and
repeated. The parts of two GPUs come in the order of their worth, each of at most 8
minutes, 30 in all; those of one GPU are measured only if they are named.
Records of four GPUs (figures/gpu_scaling) are drawn, not measured. Needs the data sets
(D2LPAR_DATA), and a clean checkout.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).parents[1]))  # where d2lpar is not installed
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import arms
import gallery_tables
import psutil
from gallery_pictures import PICTURES
from matplotlib import rc_context
from PIL import Image, PngImagePlugin

from d2lpar import __version__, experiments
from d2lpar.errors import D2lparError, RecordError, RunError
from d2lpar.figures import page
from d2lpar.gan import figure as gan
from d2lpar.records import files, labels
from d2lpar.records.kinds import Header, Run, group

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "figures"
QUIET = 5.0  # percent of all cores that other work may take
LONGEST_WAIT = 600  # seconds for the machine to become quiet


class Step(NamedTuple):
    """A command of a part, and the records that it writes below figures/.

    It may begin with variables, NAME=VALUE. With the flags of `tiny` it is a rehearsal.
    """

    command: str
    records: tuple[str, ...]
    tiny: str = "--dry-run"


class Part(NamedTuple):
    """A part of the gallery: its steps, and the minutes that they take.

    Of the parts of GPUs some are measured only if they are named.
    """

    name: str
    minutes: int
    steps: tuple[Step, ...]
    if_named: bool = False


def run_of(words: str, chapter: str, *names: str, minutes: int, name: str = "") -> Part:
    """A part of one `d2lpar run` of the book preset."""
    records = tuple(f"{chapter}/{record}.jsonl" for record in names)
    command = f"d2lpar run {chapter} {words} --out=figures"
    return Part(name or chapter, minutes, (Step(command, records),))


def trainings() -> Iterator[Part]:
    book = "--num-devices=1,2 --preset=book"  # 9 timed epochs
    for chapter in ("multiple_gpus", "multiple_gpus_concise"):
        run = f"d2lpar run {chapter} {book}"
        stems = ["book", *(f"book-seed{seed}" for seed in range(1, 5))]
        yield Part(
            f"{chapter}, five seeds", 30,
            tuple(Step(f"{run} --seeds={seed} --data=fashion-mnist --out=figures/seeds",
                       tuple(f"seeds/{chapter}/{stem}-cpu{n}.jsonl" for n in (1, 2)))
                  for seed, stem in enumerate(stems)),
        )  # fmt: skip
        names = ["book-1thread-cpu1", "book-1thread-cpu2"]
        yield run_of(
            f"{book} --data=fashion-mnist --threads=1", chapter, *names, minutes=7,
            name=f"{chapter}, one thread",
        )  # fmt: skip


def solvers() -> Iterator[Part]:
    methods = ("averaging", "averaging-as-published", "gradient", "cgls", "normal")
    book = "--preset=book --num-devices=1,2 --repeats=4 --threads=1"
    names = [
        f"book-1thread-{method}-cpu{n}" for method in (*methods, "tsqr") for n in (1, 2)
    ]
    yield run_of(book, "least_squares", *names, minutes=15)


def studies() -> Iterator[Part]:
    book = "--preset=book --data=fashion-mnist"
    names = ["book-1thread-scratch-cpu2", "book-1thread-concise-cpu2"]
    words = f"{book} --num-devices=1,2 --repeats=4"
    yield run_of(words, "scaling", *names, minutes=25)
    yield run_of("--preset=book", "timing", "book-cpu1", "book-cpu2", minutes=23)
    words = f"{book} --num-devices=1 --threads=1"
    yield run_of(words, "low_precision", "book-1thread-cpu1", minutes=7)


def gans() -> Iterator[Part]:
    words = "--preset=book --data=cryptopunks --num-devices=1,2"
    yield run_of(words, "gan", "book-cpu1", "book-cpu2", minutes=18)


def benchmarks() -> Iterator[Part]:
    rounds = "--rounds=4 --num-epochs=1"
    command = f"python benchmarks/peers.py --preset=book {rounds} --num-devices=1,2"
    command += " --out=figures/peers"
    yield Part("peers", 34, (Step(command, ("peers/custom-cpu2.jsonl",)),))
    command = command.replace("figures/peers", "figures/peers_d2l --ours=concise")
    command += " --peers=d2l_pytorch"  # it needs torchvision, too
    yield Part("peers, d2l", 10, (Step(command, ("peers_d2l/custom-cpu2.jsonl",)),))
    same = "python benchmarks/least_squares.py --rounds 2 --repeats 5 "
    same += "--arms normal,numpy"
    yield Part(
        "benchmarks/least_squares, the same method", 8,
        (Step(f"{same} --out=figures/benchmarks/same_method",
              ("benchmarks/same_method/least_squares.jsonl",)),),
    )  # fmt: skip
    for name, flags, minutes in (
        ("layers", "--rounds 3", 2),
        ("boosting", "--rounds 3", 1),
        ("kernels", "--rounds 4", 3),
        ("growth", "--rounds 3", 18),
        ("equivalence", "--rounds 3", 20),
        ("memory", "--rounds 4", 4),
        ("local_steps", "--rounds 5", 6),
        ("own_loop", "--rounds 3 --steps 8", 4),
        ("least_squares", "--rounds 3 --repeats 3", 36),
        ("gan", "--rounds 3 --steps 10", 3),
    ):
        command = f"python benchmarks/{name}.py {flags} --out=figures/benchmarks"
        record = f"benchmarks/{name}.jsonl"
        yield Part(f"benchmarks/{name}", minutes, (Step(command, (record,)),))


def parts() -> list[Part]:
    """All of the gallery that CPU contexts measure, in the order of its README."""
    return [
        *trainings(),
        *solvers(),
        *gans(),
        *studies(),
        *benchmarks(),
    ]


def on_two_gpus() -> list[Part]:
    """What two GPUs measure, in the order of its worth."""
    counts = "--devices=gpu:2 --num-devices=1,2 --preset=book"
    data = "--data=fashion-mnist"
    chapters = "multiple_gpus", "multiple_gpus_concise"

    def training(chapter: str, words: str, folder: str, stem: str = "book") -> Step:
        return Step(
            f"{words} {counts} {data} --out=figures/{folder}".lstrip(),
            tuple(f"{folder}/{chapter}/{stem}-gpu{n}.jsonl" for n in (1, 2)),
        )

    first = [training(c, f"d2lpar run {c}", "gpus") for c in chapters]
    # In equal forms: Chapter 6 has one GPU and two, each with and without a graph.
    no_graph = f"MXNET_ENABLE_CUDA_GRAPHS=0 d2lpar run {chapters[1]}"
    first.append(training(chapters[1], no_graph, "gpus/no_graph"))
    seeds = [
        training(c, f"d2lpar run {c} --seeds={seed}", "gpus/seeds", stem)
        for seed, stem in enumerate(["book", *(f"book-seed{k}" for k in range(1, 5))])
        for c in chapters
    ]
    variants = ("scratch", "concise")
    study = Step(
        f"d2lpar run scaling {counts} {data} --repeats=4 --out=figures/gpus",
        tuple(f"gpus/scaling/book-1thread-{v}-gpu2.jsonl" for v in variants),
    )
    # A process takes about 14 s, most of it to start: one times several epochs. The
    # forms that compile were measured beside these without ours (gpus/forms_256).
    peers = "python benchmarks/peers.py --preset=book --devices=gpu:2 --rounds=4"
    peers += " --ours=concise"
    ways = {
        "pytorch_loop,jax_loop --num-devices=1": "one",
        "ddp,jax_loop --num-devices=2": "two",
    }
    # In 25 trainings of peers with 8,192 images 0.80 was reached within 122 epochs.
    recipes = {
        "": ("--forms=eager,graph,scan --num-epochs=8", 3),
        "_8192": ("--forms=graph,scan --num-epochs=130 --global-batch-size=8192", 4),
    }
    tiny = "--preset=quick --rounds=1 --num-epochs=1 --n-train=512 --n-test=100"
    beside = [
        Part(
            f"peers, {count}{size and ' of 8,192'}", minutes, (Step(
            f"{peers} --peers={which} {recipe} --out=figures/gpus/peers{size}/{count}",
            (f"gpus/peers{size}/{count}/custom-gpu{1 + (count == 'two')}.jsonl",),
            f"{tiny} --global-batch-size=256",
        ),))
        for size, (recipe, minutes) in recipes.items()
        for which, count in ways.items()
    ]  # fmt: skip

    def benchmark(name: str, words: str, tiny: str) -> Part:
        command = f"python benchmarks/{name}.py {words} --out=figures/gpus/benchmarks"
        record = f"gpus/benchmarks/{name}.jsonl"
        return Part(f"benchmarks/{name}", 1, (Step(command, (record,), tiny),))

    resnet = "--devices=gpu:2 --rounds=1 --epochs=6"
    tiny = "--rounds=1 --epochs=2 --channels=4 --images=512 --data=sample"
    return [
        Part("trainings", 1, tuple(first)),
        Part("trainings, five seeds", 4, tuple(seeds)),
        Part("scaling", 5, (study,)),
        *beside,
        benchmark("resnet18", resnet, tiny)._replace(minutes=2),
        benchmark("issue", "--devices=gpu:2", "--rounds=1 --steps=2 --passes=2 "
                  "--global-batch-size=32 --data=sample")._replace(minutes=4),
        *(part._replace(if_named=True) for part in on_one_gpu()),
    ]  # fmt: skip


def on_one_gpu() -> list[Part]:
    """What one GPU measures, and only if its part is named: another 15 minutes."""
    one = "--devices=gpu:1 --num-devices=1"

    def run(chapter: str, words: str, record: str, minutes: int) -> Part:
        command = f"d2lpar run {chapter} {one} {words} --out=figures/gpus"
        return Part(chapter, minutes, (Step(command, (f"gpus/{record}",)),))

    def benchmark(name: str, tiny: str) -> Part:
        command = f"python benchmarks/{name}.py --devices=gpu:1 --rounds=4"
        command += " --out=figures/gpus/benchmarks"
        step = Step(command, (f"gpus/benchmarks/{name}.jsonl",), f"--rounds=1 {tiny}")
        return Part(f"benchmarks/{name}", 1, (step,))

    # The published GAN goes on from a checkpoint; all 4,000 epochs take 5 minutes more.
    checkpoints = sorted((ROOT / "runs" / "gallery").glob("gpus/gan/*/gpu1.epoch*"))
    resume = f" --resume={checkpoints[-1]}" if checkpoints else ""
    return [
        run("timing", "--preset=book", "timing/book-gpu1.jsonl", 3),
        benchmark("kernels", "--repeats=1 -n 1000"),
        benchmark("memory", "--images=512 --data=sample"),
        run("low_precision", "--preset=book --data=fashion-mnist",
            "low_precision/book-gpu1.jsonl", 1),
        run("gan", "--preset=as-published --data=cryptopunks --checkpoint-every=200"
            f"{resume}", "gan/as-published-gpu1.jsonl", 2 if resume else 7),
    ]  # fmt: skip


def why_to_measure(path: Path) -> str:
    """Why a record must be measured again, in a few words; "" if it need not be."""
    if not path.exists():
        return "not measured"
    run = files.read(path)
    header = run.header
    if header.git_dirty or not header.git_commit:
        return "measured by code that was not committed"
    if header.versions["d2lpar"] != __version__:
        return f"measured by version {header.versions['d2lpar']}"
    planned = header.settings.get("num_epochs", 0) if run.epochs else 0
    if planned and run.epochs[-1].epoch < planned:
        return f"ends after epoch {run.epochs[-1].epoch:,} of {planned:,}"
    return ""


def wait_until_quiet() -> None:
    """Raise :class:`RunError` if the machine does not become quiet."""
    begin, others = time.monotonic(), 100.0
    while time.monotonic() - begin < LONGEST_WAIT:
        others = psutil.cpu_percent(interval=3)
        if others < QUIET:
            return
    raise RunError(
        f"other work takes {others:.0f} % of this machine's cores; the gallery is "
        f"measured where it is below {QUIET:.0f} %"
    )


def due(part: Part) -> dict[Step, str]:
    """The steps of a part that must be measured, and why."""
    steps = {}
    for step in part.steps:
        whys = filter(None, (why_to_measure(FIGURES / name) for name in step.records))
        if why := next(whys, ""):
            steps[step] = why
    return steps


def measure(part: Part) -> None:
    """Run a part's steps, twice if other work disturbs the first time.

    Raises :class:`RunError` for a command that fails, and if both are disturbed.
    """
    for _ in range(2):
        wait_until_quiet()
        steps = due(part)
        others = run_steps(steps)
        if others < QUIET:
            return
        for name in (name for step in steps for name in step.records):
            (FIGURES / name).unlink(missing_ok=True)
        print(f"disturbed: other work took {others:.0f} % of the cores", flush=True)
    raise RunError(
        f"{part.name}: disturbed twice; stop what else runs here, then repeat this"
    )


def run_steps(steps: Iterable[Step]) -> float:
    """Run commands; the percentage of all cores that other work took meanwhile."""
    begin, busy, own = time.monotonic(), busy_seconds(), own_seconds()
    for step in steps:
        started = time.monotonic()
        run_step(step)
        minutes = (time.monotonic() - started) / 60
        print(f"{minutes:.1f} min: {step.command}", flush=True)
    others = (busy_seconds() - busy) - (own_seconds() - own)
    elapsed = time.monotonic() - begin
    return 100 * max(0.0, others) / (elapsed * (psutil.cpu_count() or 1))


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


def rehearse(chosen: Sequence[Part], devices: str) -> None:
    """Run the parts of GPUs on CPU contexts, tiny, to runs/rehearsal."""
    for part in chosen:
        for step in part.steps:
            command = step.command.replace("gpu:2", devices).replace("gpu:1", "cpu:1")
            command = command.replace("--out=figures", "--out=runs/rehearsal")
            run(f"{command} {step.tiny}")
        print(f"rehearsed: {part.name}", flush=True)


def busy_seconds() -> float:
    """Seconds that all cores of this machine have worked, or waited for its host."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return sum(times) - idle - guests  # guests count as user, too


def own_seconds() -> float:
    """Seconds that cores have worked for the commands that have ended."""
    times = os.times()
    return times.children_user + times.children_system


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


# Benchmarks whose table is a text, too: that of their script, or the usual one.
BENCHMARKS = ("kernels", "local_sgd", "resnet18")
# Sweeps whose faces are an animation.
ANIMATED = ("h200/gan/sharp", "gpus/gan/as-published")


def draw(found: dict[str, list[Run]], to: Path) -> set[Path]:
    """Draw all pictures, animations and texts in the folder `to`."""
    written = set()
    for name, entry in PICTURES.items():
        place = to / name
        with rc_context({"savefig.dpi": 200}):  # sharp when it is enlarged
            (path,) = page.save({place.name: entry.draw()}, place.parent)
        reduce_colors(path)
        written.add(path)
    for sweep, runs in found.items():
        place = to / sweep
        if isinstance(runs[0].header, Header):
            result = experiments.result(runs)
            if result.further:
                texts = {f"{place.name}-results": result.full_text(labels.source(runs))}
                written |= set(page.save(texts, place.parent))
        elif (name := runs[0].header.benchmark) in BENCHMARKS:
            script = runpy.run_path(str(ROOT / "benchmarks" / f"{name}.py"))
            text = script.get("table", arms.table)(runs[0])
            written |= set(page.save({place.name: text}, place.parent))
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
    for suffix in ("png", "svg", "gif", "txt"):
        for path in set(FIGURES.rglob(f"*.{suffix}")) - written:
            path.unlink()
    for path in gallery_tables.pages():
        gallery_tables.write(path, found)
    print(f"{len(PICTURES)} pictures, and the tables of figures/*.md", flush=True)


def words_in(path: Path) -> dict[str, str]:
    """The title and the source of a picture."""
    with Image.open(path) as picture:
        return {name: picture.info.get(name, "") for name in ("Title", "Description")}


def disagreements() -> list[str]:
    """What in figures/ and in documents is not what the records say."""
    found, wrong = sweeps(), []
    pages = gallery_tables.pages()
    texts = {path: path.read_text(encoding="utf-8") for path in pages}
    for path, text in texts.items():
        if gallery_tables.rendered(text, found) != text:
            wrong.append(f"{path}: its tables are not those of the records")
        if f"({path.name})" not in texts[FIGURES / "README.md"] + "(README.md)":
            wrong.append(f"figures/README.md: does not list {path.name}")
    shown = [name for path in pages for name in gallery_tables.shown_on(path)]
    if missing := [name for name in PICTURES if shown.count(name) != 1]:
        wrong.append(f"figures/*.md: not shown once: {', '.join(missing)}")
    expected = {*pages, *FIGURES.rglob("*.jsonl")}
    expected.add(FIGURES / "scaling" / "one-step-trace.json")  # chapter scaling's
    with tempfile.TemporaryDirectory() as folder:
        for new in draw(found, Path(folder)):
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
    wrong += [
        f"{path}: {path.stat().st_size:,} bytes; at most 150,000"
        for path in sorted(there)
        if path.suffix == ".png" and path.stat().st_size > 150_000
    ]
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="[default: all]")
    parser.add_argument("--list", action="store_true", help="run nothing")
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument(
        "--devices", help="gpu:2: the parts of GPUs; cpu:2: a rehearsal of them"
    )
    args = parser.parse_args()
    known = {part.name: part for part in (on_two_gpus() if args.devices else parts())}
    for name in args.parts:
        if name not in known:
            parser.error(f"part {name!r}: write some of {', '.join(known)}")
    try:
        if args.check:
            wrong = disagreements()
            print("\n".join(wrong) or "figures/ and documents agree with the records")
            sys.exit(1 if wrong else 0)
        rehearsal = (args.devices or "gpu:2") != "gpu:2"
        chosen = [known[name] for name in args.parts] or [
            part for part in known.values()
            if args.list or rehearsal or not part.if_named
        ]  # fmt: skip
        if rehearsal and not args.list:
            rehearse(chosen, args.devices)
            return
        if not args.draw:
            measure_all(chosen, only_list=args.list)
        if not args.list:
            draw_all()
    except D2lparError as error:
        sys.exit(f"gallery: {error}")


def measure_all(chosen: list[Part], only_list: bool) -> None:
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
    for number, part in enumerate(to_do, 1):
        left = sum(p.minutes for p in to_do[number - 1 :])
        print(f"[{number}/{len(to_do)}] {part.name}; {left} minutes left", flush=True)
        measure(part)


if __name__ == "__main__":
    main()
