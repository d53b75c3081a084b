"""The commands of `d2lpar`. Each imports what it needs when it is called.

d2lpar run multiple_gpus --num-devices 1,2 --preset quick
d2lpar list | doctor | devices | plot RECORDS... | compare A.jsonl B.jsonl
d2lpar launch --workers 2 -- run multiple_machines
d2lpar sample --checkpoint FILE --n 25 --seed 7
"""

from __future__ import annotations

import json
import logging
import re
import runpy
import shlex
import sys
from dataclasses import asdict
from pathlib import Path

import click

from d2lpar._version import __version__
from d2lpar.cli.chapter_list import (
    CHAPTERS,
    as_word,
    check_shared,
    ordered,
    unused,
)
from d2lpar.cli.error_lines import guard
from d2lpar.cli.options import (
    CONTEXT,
    COUNT,
    FILLED,
    POSITIVE,
    as_arguments,
    given,
    launch_options,
    peers_options,
    run_options,
)
from d2lpar.errors import SettingError
from d2lpar.machine.environment import check_backend, check_environment

log = logging.getLogger("d2lpar")


def chapters_folder() -> Path:
    """The chapter scripts: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).parents[1]
    beside = package.parent / "chapters"
    return beside if beside.is_dir() else package / "chapters"


def chapter_files() -> dict[str, Path]:
    """The chapters' scripts by the chapters' names, in the order of reading."""
    files = {file.stem: file for file in chapters_folder().glob("[!_]*.py")}
    return {name: files[name] for name in ordered(files)}


def about(file: Path) -> tuple[str, str]:
    """A chapter's title and the source it follows, without the source's address.

    Both stand in the chapter's first cell, as `# # TITLE` and `# Source: SOURCE`.
    """
    text = file.read_text(encoding="utf-8")
    title = re.search(r"^# # (.+)$", text, re.MULTILINE)
    source = re.search(r"^# Source: ((?:.+\n)(?:# [^<].*\n)*)", text, re.MULTILINE)
    words = source[1].replace("\n# ", " ").strip(" ,\n") if source else "?"
    return title[1] if title else file.stem, words


@click.group(context_settings=CONTEXT)
@click.version_option(__version__, "-V", "--version", prog_name="d2lpar")
def d2lpar() -> None:
    """Data-parallel chapters of Dive into Deep Learning, on MXNet."""


def _complete_chapter(ctx, parameter, text: str) -> list[str]:
    return [name for name in (*chapter_files(), "all") if name.startswith(text)]


@d2lpar.command()
@click.argument(
    "chapter", default="", metavar="CHAPTER", shell_complete=_complete_chapter
)
@run_options
@click.pass_context
def run(ctx: click.Context, chapter: str, **flags) -> None:
    """Run CHAPTER (see `d2lpar list`) or all of them; figures go to --out.

    A flag that the chapter has no use for is refused. With `all` every flag goes to the
    chapters that have a use for it.
    """
    from d2lpar.cli.run import check_devices, check_together

    check_environment()
    check_together(flags)
    files = chapter_files()
    if chapter != "all" and chapter not in files:
        raise SettingError(f"chapter {chapter!r}: write one of all, {', '.join(files)}")
    every, flags = flags, given(ctx, flags)
    chosen = list(files) if chapter == "all" else [chapter]
    # For all of them before the first one runs, which may take hours.
    refused = {name: unused(name, flags) for name in chosen}
    if chapter == "all":
        _say_who_ignores(flags, refused)
    else:
        for why in refused[chapter].values():
            raise SettingError(why)
    check_devices(every)
    for name in chosen:
        taken = {flag: v for flag, v in flags.items() if flag not in refused[name]}
        before = sys.argv
        sys.argv = [str(files[name]), *map(as_word, taken, taken.values())]
        try:
            runpy.run_path(str(files[name]), run_name="__main__")
        finally:
            sys.argv = before


def _say_who_ignores(flags: dict, refused: dict[str, dict[str, str]]) -> None:
    for flag, value in flags.items():
        names = [name for name, why in refused.items() if flag in why]
        if names:
            word = as_word(flag, value)
            log.warning("%s: ignored by %s", word, ", ".join(names))


@d2lpar.command()
@launch_options
def launch(**flags) -> None:
    """Run a chapter on several workers: launch ... -- run multiple_gpus_concise ...

    Starts a scheduler, servers and workers, here or over ssh on --hosts, watches them,
    and restarts them from the last checkpoint when one dies.
    """
    from d2lpar.cli.launch import checked, run_launch
    from d2lpar.cli.run import check_one_thing, check_together

    check_environment()
    name, *words = checked(flags["arguments"], chapter_files())[1:]
    ctx = run.make_context("d2lpar run", [name, *words])  # every worker will do it
    check_together(ctx.params)
    if name in CHAPTERS:
        check_shared(name, CHAPTERS[name].workers)
    for why in unused(name, given(ctx, ctx.params)).values():
        raise SettingError(why)
    check_one_thing(ctx.params)
    run_launch(**flags)


@d2lpar.command(name="list")
def list_chapters() -> None:
    """List the chapters in the order of reading, one per line, with their sources."""
    for name, file in chapter_files().items():
        title, source = about(file)
        number = CHAPTERS[name].number if name in CHAPTERS else ""
        click.echo(f"{number:>2}  {name:24}{title}  [{source}]")


@d2lpar.command()
@click.argument("records", nargs=-1, required=True, type=FILLED)
@click.option(
    "--out",
    type=FILLED,
    help="Folder for the figures. [default: beside the records]",
)
@click.option(
    "--data-dir", type=FILLED, help="Folder to look for a GAN's real faces in first."
)
@click.option("--mp4", is_flag=True, help="Also write a GAN's animation as MP4.")
def plot(
    records: tuple[str, ...], out: str | None, data_dir: str | None, mp4: bool
) -> None:
    """Redraw the figures of RECORDS, of runs or benchmarks; needs no MXNet."""
    from d2lpar.figures import drawing
    from d2lpar.records import files
    from d2lpar.records.kinds import FrameRecord, group

    runs = [files.read(path) for path in records]
    if (mp4 or data_dir) and not any(run.of(FrameRecord) for run in runs):
        flag = "--mp4" if mp4 else f"--data-dir {data_dir}"
        raise SettingError(f"{flag}: these records hold no faces, only a GAN's do")
    for (folder, _, stem), sweep in group(runs, files.sweep_of).items():
        to = Path(out) if out else folder
        for path in drawing.draw(sweep, to, stem, data_dir=data_dir, mp4=mp4):
            click.echo(path)


@d2lpar.command()
@click.option(
    "--checkpoint",
    type=FILLED,
    required=True,
    help="A file that `run gan` has written.",
)
@click.option("--n", type=click.IntRange(1, 10_000), default=25)
@click.option("--seed", type=COUNT, default=0)
@click.option("--out", default="faces.png", type=FILLED, help="The picture.")
@click.option("--columns", type=POSITIVE, default=5)
@click.option(
    "--scale",
    type=POSITIVE,
    default=8,
    help="Screen pixels along each side of a face's pixel.",
)
def sample(checkpoint: str, n: int, seed: int, out: str, **layout: int) -> None:
    """Draw N new faces from a GAN's checkpoint, as a PNG."""
    from d2lpar import devices, gan
    from d2lpar.datasets import face_images
    from d2lpar.records import checkpoints
    from d2lpar.records.atomic import replacing

    face_images.check_sheet(n, layout["columns"], layout["scale"])
    state = gan.start()
    state = checkpoints.load(checkpoint, like=state).restore(state)
    faces = gan.sample(state, n, seed, devices.parse("auto")[0])
    sheet = face_images.sheet(faces, layout["columns"])
    with replacing(out) as tmp:
        tmp.write_bytes(face_images.png(face_images.enlarged(sheet, layout["scale"])))
    click.echo(f"figure: {out}")


@d2lpar.command()
@click.argument("a", required=False, type=FILLED)
@click.argument("b", required=False, type=FILLED)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option(
    "--out",
    type=FILLED,
    help="Folder for the figure. [default: none is drawn with --json, --csv; "
    "else beside B; with --peers, runs/peers]",
)
@peers_options
@click.pass_context
def compare(
    ctx: click.Context,
    a: str | None,
    b: str | None,
    out: str | None,
    **flags,
) -> None:
    """Compare record A with B: 1 against 2 devices, or before against after.

    With --peers compare ours with d2l's and PyTorch's training, timed now, in turn.
    """
    formats = [name for name in ("json", "csv") if flags.pop(f"as_{name}")]
    if len(formats) > 1:
        raise SettingError("--json and --csv: one of them can be printed")
    printed = formats[0] if formats else "table"
    words = as_arguments(ctx, flags)
    if flags["peers"] is not None:
        if a is not None:
            raise SettingError(f"--peers and the record {a}: compare one or the other")
        from d2lpar.cli.compare import ours_and_peers

        check_environment()
        command = shlex.join(["d2lpar", "compare", *words])
        ours_and_peers(flags, out, printed, command)
    elif words:
        raise SettingError(f"{words[0]}: goes with --peers only")
    elif b is None:
        raise SettingError("compare: name two records, or give --peers")
    else:
        from d2lpar.cli.compare import records

        records(Path(a), Path(b), printed, out)


@d2lpar.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--out", default="runs", type=FILLED, help="The folder of runs to examine."
)
@click.option("--data-dir", type=FILLED, help="Folder to look for the data in first.")
@click.pass_context
def doctor(ctx: click.Context, as_json: bool, out: str, data_dir: str | None) -> None:
    """Examine this machine; exit 1 when training cannot run on it."""
    from d2lpar.cli.doctor import can_train, examine, print_report

    checks = examine(out=out, data_dir=data_dir)
    if as_json:
        click.echo(json.dumps([asdict(check) for check in checks], indent=1))
    else:
        print_report(checks)
    ctx.exit(0 if can_train(checks) else 1)


@d2lpar.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--watch",
    is_flag=True,
    help="Show how busy they are, until Ctrl-C. With --json, as lines.",
)
@click.option("--interval", default=1.0, help="Seconds. [--watch]")
@click.option(
    "--pid",
    type=POSITIVE,
    help="Watch this process. [--watch; default: all runs of d2lpar]",
)
@click.pass_context
def devices(
    ctx: click.Context, as_json: bool, watch: bool, interval: float, pid: int | None
) -> None:
    """Describe this machine's GPUs and CPU contexts; needs no MXNet."""
    from d2lpar.cli.watch_screen import show_live
    from d2lpar.machine import cards, load
    from d2lpar.records.files import to_line

    if not watch:
        for word in as_arguments(ctx, {"interval": interval, "pid": pid}):
            raise SettingError(f"{word}: goes with --watch only")
        here = cards.machine()
        click.echo(cards.as_json(here) if as_json else cards.as_text(here))
        return
    samples = load.samples(load.watched(pid), interval)
    if as_json:
        for sample in samples:
            click.echo(to_line(sample))
    else:
        show_live(samples, cards.machine())


@d2lpar.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print the completion script, e.g. eval "$(d2lpar completion bash)"."""
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)(d2lpar, {}, "d2lpar", "_D2LPAR_COMPLETE")
    click.echo(complete.source())


def main() -> None:
    """The console script."""

    def command():
        check_backend()
        return d2lpar.main(prog_name="d2lpar", standalone_mode=False)

    guard(command)
