"""The command line: flags, progress, errors. No science, and no MXNet until it is
needed.

d2lpar run multiple_gpus --num-devices 1,2 --preset quick
d2lpar list | doctor | plot RECORDS... | compare A.jsonl B.jsonl | completion SHELL
d2lpar sample --checkpoint FILE --n 25 --seed 7
"""

from __future__ import annotations

import csv
import dataclasses
import json
import logging
import re
import runpy
import shlex
import sys
from pathlib import Path

import click

from d2lpar._version import __version__
from d2lpar.cli.error_lines import guard
from d2lpar.cli.options import as_arguments, launch_options, peers_options, run_options
from d2lpar.errors import SettingError

log = logging.getLogger("d2lpar")


def chapters_folder() -> Path:
    """The chapter scripts: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).parents[1]
    beside = package.parent / "chapters"
    return beside if beside.is_dir() else package / "chapters"


def chapter_files() -> dict[str, Path]:
    """Chapters by name."""
    files = sorted(chapters_folder().glob("[!_]*.py"))
    return {file.stem: file for file in files}


def about(file: Path) -> tuple[str, str]:
    """A chapter's title and the seed it comes from, read from its text."""
    text = file.read_text(encoding="utf-8")
    title = re.search(r"^# # (.+)$", text, re.MULTILINE)
    seed = re.search(r"^# Seed: (.+)$", text, re.MULTILINE)
    return title[1] if title else file.stem, seed[1] if seed else "?"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="d2lpar")
def d2lpar() -> None:
    """Data-parallel chapters of Dive into Deep Learning, on MXNet."""


@d2lpar.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
)
@click.argument(
    "chapter",
    shell_complete=lambda ctx, arg, text: [
        name for name in (*chapter_files(), "all") if name.startswith(text)
    ],
)
@run_options
@click.pass_context
def run(ctx: click.Context, chapter: str, **flags) -> None:
    """Run CHAPTER (see `d2lpar list`) or all of them; figures go to --out."""
    files = chapter_files()
    if chapter != "all" and chapter not in files:
        raise SettingError(f"chapter {chapter!r}: write one of all, {', '.join(files)}")
    arguments = as_arguments(ctx, flags) + ctx.args
    for file in files.values() if chapter == "all" else [files[chapter]]:
        before = sys.argv
        sys.argv = [str(file), *arguments]
        try:
            runpy.run_path(str(file), run_name="__main__")
        finally:
            sys.argv = before


@d2lpar.command()
@launch_options
def launch(**flags) -> None:
    """Run a chapter on several workers: launch ... -- run multiple_gpus_concise ...

    Starts a scheduler, servers and workers, here or over ssh on --hosts, watches them,
    and starts again from the last checkpoint when one dies.
    """
    from d2lpar.cli.launch import run_launch

    run_launch(chapter_files(), **flags)


@d2lpar.command(name="list")
def list_chapters() -> None:
    """The chapters, a line each, and the seed they come from."""
    for name, file in chapter_files().items():
        title, seed = about(file)
        click.echo(f"{name:24}{title}  [{seed}]")


@d2lpar.command()
@click.argument("records", nargs=-1, required=True)
@click.option("--out", help="Folder for the pictures. [default: beside the records]")
@click.option("--data-dir", help="Where to look first for a GAN's real faces.")
@click.option("--mp4", is_flag=True, help="Also write a GAN's animation as MP4.")
def plot(
    records: tuple[str, ...], out: str | None, data_dir: str | None, mp4: bool
) -> None:
    """Draw the pictures of RECORDS, runs or benchmarks, again; needs no MXNet."""
    from d2lpar.figures import drawing
    from d2lpar.records import files
    from d2lpar.records.kinds import group

    runs = [files.read(path) for path in records]
    for (folder, _, stem), sweep in group(runs, files.sweep_of).items():
        to = Path(out) if out else folder
        for path in drawing.draw(sweep, to, stem, data_dir=data_dir, mp4=mp4):
            click.echo(path)


@d2lpar.command()
@click.option("--checkpoint", required=True, help="A file that `run gan` has written.")
@click.option("--n", type=click.IntRange(min=1), default=25, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--out", default="faces.png", show_default=True, help="The picture.")
@click.option("--columns", type=click.IntRange(min=1), default=5, show_default=True)
@click.option(
    "--scale",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="Screen pixels along a face's pixel.",
)
def sample(
    checkpoint: str, n: int, seed: int, out: str, columns: int, scale: int
) -> None:
    """Draw N new faces from a GAN's checkpoint, as a PNG."""
    from d2lpar import devices, gan
    from d2lpar.datasets import face_images
    from d2lpar.records import checkpoints
    from d2lpar.records.atomic import replacing

    state = gan.start()
    found = checkpoints.load(checkpoint, like=state)
    state = state.restore(found.tensors, found.facts)
    faces = gan.sample(state, n, seed, devices.parse("auto")[0])
    picture = face_images.enlarged(face_images.sheet(faces, columns), scale)
    with replacing(out) as tmp:
        tmp.write_bytes(face_images.png(picture))
    click.echo(f"figure: {out}")


@d2lpar.command()
@click.argument("a", required=False)
@click.argument("b", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option(
    "--out",
    help="Folder for the picture. [default: none is drawn with --json, --csv; "
    "else beside B; with --peers, figures/peers]",
)
@peers_options
@click.pass_context
def compare(
    ctx: click.Context,
    a: str | None,
    b: str | None,
    as_json: bool,
    as_csv: bool,
    out: str | None,
    **flags,
) -> None:
    """Compare record A with B: 1 against 2 devices, or before against after.

    With --peers compare ours with d2l's and PyTorch's training, timed now, in turn.
    """
    if flags["peers"] is not None:
        if a is not None:
            raise SettingError(f"--peers and the record {a}: compare one or the other")
        from d2lpar.cli import compare_peers

        words = ["d2lpar", "compare", *as_arguments(ctx, flags)]
        printed = "json" if as_json else "csv" if as_csv else "table"
        return compare_peers.compare(flags, out, printed, shlex.join(words))
    given = as_arguments(ctx, flags)
    if given:
        raise SettingError(f"{given[0]}: goes with --peers only")
    if b is None:
        raise SettingError("compare: name two records, or give --peers")
    from d2lpar.figures import drawing
    from d2lpar.records import comparison as records_comparison
    from d2lpar.records import files as records_files

    run_a, run_b = records_files.read(a), records_files.read(b)
    comparison = records_comparison.compare(run_a, run_b)
    rows = records_comparison.comparison_rows(comparison)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(comparison), indent=1, default=str))
    elif as_csv:
        writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        click.echo(
            records_comparison.comparison_table(comparison)
        )  # with the differences
    if as_json or as_csv:
        for difference in comparison.differences:
            log.warning("the runs differ also in %s", difference)
    if out or not (as_json or as_csv):
        stem = f"compare-{run_a.path.stem}-{run_b.path.stem}"
        folder = Path(out) if out else run_b.path.parent
        for path in drawing.draw_compare(run_a, run_b, folder, stem):
            if path.suffix == ".png":
                click.echo(f"figure: {path}")


@d2lpar.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--out", default="figures", help="The figure folder to examine.")
@click.option("--data-dir", help="Folder to look for the data in first.")
@click.pass_context
def doctor(ctx: click.Context, as_json: bool, out: str, data_dir: str | None) -> None:
    """Examine this machine; exit 1 when training cannot run on it."""
    from d2lpar.cli import doctor as cli_doctor

    checks = cli_doctor.examine(out=out, data_dir=data_dir)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(c) for c in checks], indent=1))
    else:
        click.echo(cli_doctor.report(checks))
    ctx.exit(0 if cli_doctor.can_train(checks) else 1)


@d2lpar.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--watch",
    is_flag=True,
    help="Show how busy they are, until Ctrl-C. With --json, lines.",
)
@click.option(
    "--interval", type=float, default=1.0, show_default=True, help="Seconds. [--watch]"
)
@click.option(
    "--pid", type=int, help="Watch this process. [default: all runs of d2lpar]"
)
def devices(as_json: bool, watch: bool, interval: float, pid: int | None) -> None:
    """What the GPUs and the CPU contexts of this machine are; needs no MXNet."""
    from d2lpar.machine import gpu_cards, load
    from d2lpar.records.files import to_line

    if not watch:
        found = gpu_cards.machine()
        as_words = gpu_cards.as_json if as_json else gpu_cards.as_text
        click.echo(as_words(found))
        return
    samples = load.samples(load.watched(pid), interval)
    if as_json:
        for sample in samples:
            click.echo(to_line(sample))
        return
    from d2lpar.cli.watch_screen import show_live

    show_live(samples, gpu_cards.machine())


@d2lpar.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print the completion script, e.g. eval "$(d2lpar completion bash)"."""
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)(d2lpar, {}, "d2lpar", "_D2LPAR_COMPLETE")
    click.echo(complete.source())


def main() -> None:
    """The console script."""
    guard(lambda: d2lpar.main(prog_name="d2lpar", standalone_mode=False))


if __name__ == "__main__":
    main()
