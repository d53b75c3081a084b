"""The commands of `d2lpar`. Each imports what it needs when it is called.

An error is one line on stderr and an exit code; docs/troubleshooting.md lists them.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click

from d2lpar import __version__
from d2lpar.cli.options import CONTEXT, OUT, PATH, RUN
from d2lpar.errors import D2lparError, RecordError, SettingError, raising_interrupts
from d2lpar.experiments import EXPERIMENTS, LESSONS, draw, get, result
from d2lpar.text import duration, filled, printable

log = logging.getLogger("d2lpar")


class InOrder(click.Group):
    """List the commands in the order of this file, that of their use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(
    cls=InOrder,
    context_settings=CONTEXT,
    invoke_without_command=True,
    epilog="Example: d2lpar run multiple_gpus, then open runs/index.html.",
)
@click.version_option(__version__, "-V", "--version", prog_name="d2lpar")
@click.pass_context
def d2lpar(ctx: click.Context) -> None:
    """Data-parallel chapters of Dive into Deep Learning, on MXNet."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@d2lpar.command(name="list", short_help="List the chapters.")
def list_chapters() -> None:
    """List the chapters: what each measures, and how long it takes on two cores.

    A chapter without a time has nothing to measure: it is a lesson to be read and run.
    """
    rows = [(n, name, "", "a lesson, in chapters/") for n, name in LESSONS.items()]
    for name, chapter in EXPERIMENTS.items():
        time = duration(60 * chapter.minutes)
        rows.append((chapter.number, name, time, chapter.about))
    for number, name, time, about in sorted(rows):
        click.echo(filled(about, f"{number:2}  {name:21}  {time:>6}  "))
    click.echo("\nStart with: d2lpar run multiple_gpus")


@d2lpar.command(
    params=[click.Argument(["chapter"]), *RUN],
    short_help="Measure a chapter.",
    epilog="Example: d2lpar run multiple_gpus --num-devices 1,2 --num-epochs 5",
)
@OUT
def run(chapter: str, **flags) -> None:
    """Measure CHAPTER, a name or a number of `d2lpar list`.

    A flag that does not apply to the chapter is refused. The lesson around the
    measurement is the chapter's notebook, or `python chapters/CHAPTER.py`.
    """
    if os.environ.get("DMLC_ROLE", "worker") != "worker":
        from d2lpar.workers.launch import serve

        return serve()
    from d2lpar.runs.measure import measure

    measure(chapter, **{name: v for name, v in flags.items() if v is not None})


@d2lpar.command(short_help="Say what runs found.")
@click.argument("records", metavar="[RECORD or FOLDER]...", nargs=-1, type=PATH)
@click.option(
    "--format",
    "form",
    type=click.Choice(("text", "csv")),
    default="text",
    help="csv: all that was timed, as numbers for a program.",
)
@OUT
def report(records: tuple[str, ...], form: str, out: str | None) -> None:
    """Say in a line for each chapter what its newest run found; write the page.

    With --format csv: medians, ranges and verdicts of RECORDs, or of all in a FOLDER.
    Without either, of the runs in --out.
    """
    from d2lpar.records import atomic, files
    from d2lpar.runs import report, timed

    named = [Path(name) for name in records] or [atomic.output_folder(out)]
    if form == "csv":
        paths = [path for name in named for path in files.found(name)]
        return click.echo(printable(timed.as_csv([files.read(path) for path in paths])))
    for path in named:
        if path.is_file():
            found = result([files.read(path)])
            click.echo(filled(printable(found.in_short), f"{path.name}  "))
            continue
        sweeps = report.sweeps(path)
        if not sweeps:
            raise RecordError(f"{path}: no runs in it; first: d2lpar run multiple_gpus")
        click.echo(printable(report.in_short(sweeps)))
        click.echo(f"Open {report.write_page(path, sweeps).resolve().as_uri()}")


@d2lpar.command(short_help="Compare two records.")
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
def compare(a: str, b: str) -> None:
    """Compare record A with B: 1 against 2 devices, or before against after."""
    from d2lpar.cli.compare import compare
    from d2lpar.records import files

    click.echo(printable(compare(files.read(a), files.read(b))))


@d2lpar.command(short_help="Redraw figures from records.")
@click.argument("records", nargs=-1, required=True, type=PATH)
@OUT
def plot(records: tuple[str, ...], out: str | None) -> None:
    """Redraw the figures of RECORDS, in OUT/CHAPTER/RECIPE/; needs no MXNet.

    Each sweep, the records of one recipe, has its own pictures.
    """
    from d2lpar.records import atomic, files
    from d2lpar.records.kinds import group

    runs = [files.read(path) for name in records for path in files.found(name)]
    for (_, chapter, recipe), same in group(runs, files.sweep_of).items():
        for path in draw(same, atomic.output_folder(out) / chapter / recipe):
            click.echo(printable(str(path)))


@d2lpar.command(
    short_help="Judge a data-parallel step of your own.",
    context_settings={"ignore_unknown_options": True},
    add_help_option=False,
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def verify(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Judge STEP.py, or a whole program: is its step on several devices that of one?"""
    from d2lpar.verify.__main__ import main

    ctx.exit(main(list(words)))


@d2lpar.command(short_help="Examine this machine.")
@click.pass_context
def doctor(ctx: click.Context) -> None:
    """Describe the devices, and train a little; exit 1 when training cannot run."""
    from d2lpar.cli.doctor import examine
    from d2lpar.machine import cards

    for line in cards.as_text().splitlines():
        click.echo(filled(line))
    checks = examine()
    failed = any(check.status == "fail" for check in checks)
    for check in checks:
        click.echo(filled(check.message, f"{check.status:6}{check.name:10}"))
    said = "training can run here; next: d2lpar run multiple_gpus"
    if failed:
        said = "training cannot run here; docs/troubleshooting.md explains why"
    click.echo(filled(said))
    ctx.exit(int(failed))


@d2lpar.command(short_help="Run a chapter on several workers.")
@click.option("--workers", default=2, type=click.IntRange(1, 64))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="-- run CHAPTER")
def launch(workers: int, arguments: tuple[str, ...]) -> None:
    """Run a chapter on several workers: launch --workers 2 -- run multiple_machines

    Starts MXNet's scheduler and server and the workers on this machine. On several
    machines, let srun or mpirun start them: docs/usage.md.
    """
    from d2lpar.machine.host import usable_cores
    from d2lpar.workers.launch import launch

    command, *words = arguments or ("",)
    if command != "run" or not words:
        raise click.UsageError("after -- write: run multiple_machines")
    experiment = get(words[0])
    if experiment.name != "multiple_machines":
        raise SettingError(
            f"launch: {experiment.name} is not shared among workers; write "
            "multiple_machines"
        )
    flags = flags_of(*words)
    experiment.refuse_unused(flags)
    if not str(flags.setdefault("devices", "cpu:1")).startswith("cpu"):
        raise SettingError("launch: workers on one machine train on CPU contexts")
    if "threads" not in flags:
        words.append(f"--threads={max(1, usable_cores() // workers)}")
    click.echo(filled(f"{experiment.name}: {experiment.about}, on {workers} workers"))
    program = [sys.executable, "-m", "d2lpar", "run", *words]
    launch([*program, f"--devices={flags['devices']}"], workers)


def flags_of(chapter: str, *words: str) -> dict[str, object]:
    """Return the flags of a chapter's script; a wrong one raises click's error."""
    flags = run.make_context("d2lpar run", [chapter, *words]).params
    del flags["chapter"]
    return {name: value for name, value in flags.items() if value is not None}


def main() -> None:
    """The console script."""
    # Figures are drawn into files. Another backend may need a screen, or not exist.
    os.environ["MPLBACKEND"] = "agg"
    guard(lambda: d2lpar.main(prog_name="d2lpar", standalone_mode=False))


# Errors


def guard(call: Callable[[], object]) -> object:
    """Return what a command returns; an error becomes one line and an exit code."""
    # MXNet sets up the root logger, which would print the package's messages again.
    handler, propagate = logging.StreamHandler(), log.propagate
    handler.format = lambda record: f"d2lpar: {printable(record.getMessage())}"
    with raising_interrupts():
        log.addHandler(handler)
        log.propagate = False
        try:
            code = call()
            sys.stdout.flush()  # a full disk behind it is an error, too
        except click.exceptions.Exit as end:  # after --help
            code = end.exit_code
        except (Exception, KeyboardInterrupt) as error:
            message, code = _message_and_code(error)
            if message is None:
                raise
            with suppress(OSError):  # where the terminal has been closed
                click.echo(f"d2lpar: {printable(message)}", err=True)
        finally:
            log.removeHandler(handler)
            log.propagate = propagate
        if isinstance(code, int) and code != 0:
            sys.exit(code)
        return code


def _message_and_code(error: BaseException) -> tuple[str | None, int]:
    """Return None for unexpected errors, which keep their traceback."""
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return "interrupted", 130
    if isinstance(error, click.ClickException):
        message = " ".join(error.format_message().split())[:300]
        if isinstance(error, click.UsageError) and error.ctx:
            message += f"\n{error.ctx.get_usage()}"
        return message, 2
    if isinstance(error, D2lparError):
        return str(error), error.exit_code
    if isinstance(error, OSError) and error.strerror is not None:
        # Our own files are named in the error; without a name it is a terminal or pipe.
        return f"{error.filename or 'standard output'}: {error.strerror}", 2
    return None, 1
