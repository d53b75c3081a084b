"""The command line: flags, progress, errors. No science, and no MXNet until it is
needed.

d2lpar run multiple_gpus --num-devices 1,2 --preset quick
d2lpar list | doctor | plot RECORDS... | compare A.jsonl B.jsonl | completion SHELL
"""

from __future__ import annotations

import csv
import dataclasses
import json
import logging
import math
import re
import runpy
import shlex
import signal
import sys
from collections.abc import Callable
from contextlib import closing, contextmanager
from pathlib import Path

import click
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from d2lpar._version import __version__
from d2lpar.errors import D2lparError, SettingError

log = logging.getLogger("d2lpar")

PRESETS = ("quick", "book")


def chapters_folder() -> Path:
    """The chapter scripts: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).parent
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


def _learning_rate(ctx: click.Context, option: click.Parameter, lr: float | None):
    if lr is not None and not (math.isfinite(lr) and lr > 0):
        raise click.BadParameter(f"{lr:g} is not a finite number greater than 0.")
    return lr


def run_options(command: Callable) -> Callable:
    """The flags of `d2lpar run` and of every chapter run alone."""
    for option in reversed(
        (
            click.option(
                "--devices",
                default="auto",
                show_default=True,
                help="auto, cpu:N, gpu:N (the first N) or gpu:I,J (those).",
            ),
            click.option(
                "--num-devices",
                help="Counts to sweep, e.g. 1,2,4. [default: 1, 2, 4, ... and all]",
            ),
            click.option(
                "--preset",
                type=click.Choice(PRESETS),
                default="quick",
                show_default=True,
                help="quick: about a minute. book: the seed's recipe, all the data.",
            ),
            click.option(
                "--out",
                default="figures",
                show_default=True,
                help="Folder for records and pictures.",
            ),
            click.option(
                "--seed", type=click.IntRange(min=0), default=0, show_default=True
            ),
            click.option(
                "--repeats",
                type=click.IntRange(min=1),
                default=1,
                show_default=True,
                help="Measure every device count this many times, in turn.",
            ),
            click.option(
                "--threads",
                type=click.IntRange(min=1),
                help="Threads of a CPU context. [default: cores // device count]",
            ),
            click.option(
                "--data",
                type=click.Choice(("auto", "fashion-mnist", "synthetic")),
                default="auto",
                show_default=True,
                help="auto falls back to generated garments, and says so.",
            ),
            click.option("--data-dir", help="Folder to look for the data in first."),
            click.option(
                "--num-epochs",
                type=click.IntRange(min=1),
                help="Override the preset's.",
            ),
            click.option(
                "--global-batch-size",
                type=click.IntRange(min=1),
                help="Override the preset's.",
            ),
            click.option(
                "--lr",
                type=float,
                callback=_learning_rate,
                help="Override the preset's.",
            ),
            click.option(
                "--dry-run", is_flag=True, help="Train two batches of everything."
            ),
        )
    ):
        command = option(command)
    return command


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
    arguments = _as_arguments(ctx, flags) + ctx.args
    for file in files.values() if chapter == "all" else [files[chapter]]:
        before = sys.argv
        sys.argv = [str(file), *arguments]
        try:
            runpy.run_path(str(file), run_name="__main__")
        finally:
            sys.argv = before


def _as_arguments(ctx: click.Context, flags: dict) -> list[str]:
    """The flags that were given, as they would be written."""
    given = []
    for name, value in flags.items():
        if ctx.get_parameter_source(name) is click.core.ParameterSource.DEFAULT:
            continue
        flag = f"--{name.replace('_', '-')}"
        given += [flag] if value is True else [f"{flag}={value}"]
    return given


def chapter(
    name: str,
    train: str,
    presets: dict[str, dict],
    *,
    load: str | None = None,
    variants: dict[str, dict] | None = None,
) -> None:
    """The last cell of a chapter: measure `train` as the flags say, draw the figures.

    `train` and `load` are "module:function" (see :class:`d2lpar.runner.Job`); without
    `load` the data is Fashion-MNIST. `presets` holds the settings of "quick" and
    "book": arguments of `train`, and under "data" those of `load`. `variants` are
    settings to add for each of several methods, all of which are measured. In a
    notebook there are no flags: the defaults are used.
    """
    in_notebook = "ipykernel" in sys.modules
    arguments = [] if in_notebook else sys.argv[1:]

    @click.command(name, context_settings={"help_option_names": ["-h", "--help"]})
    @run_options
    @click.pass_context
    def command(ctx: click.Context, **flags) -> None:
        words = ["d2lpar", "run", name, *_as_arguments(ctx, flags)]
        plan = (name, train, presets, load, variants or {"": {}})
        _run_sweep(*plan, shlex.join(words), **flags)

    _guard(lambda: command.main(arguments, name, standalone_mode=False), in_notebook)


def _run_sweep(
    name: str,
    train: str,
    presets: dict[str, dict],
    load: str | None,
    variants: dict[str, dict],
    command: str,
    **flags,
) -> None:
    from d2lpar import datasets, devices, figures, runner

    available = len(devices.parse(flags["devices"]))
    counts = devices.parse_counts(
        flags["num_devices"] or devices.default_counts(available), available
    )
    preset, settings, data = _settings(presets, flags)
    data["seed"] = flags["seed"]
    if load is None:
        load = "d2lpar.datasets:load"
        data["data_dir"] = flags["data_dir"]
        data["name"] = datasets.locate(flags["data"], flags["data_dir"])
    out = Path(flags["out"]) / name
    runner.records.check_writable(out)
    jobs = [
        runner.Job(
            chapter=name,
            preset=preset,
            train=train,
            devices=flags["devices"],
            num_devices=count,
            seed=flags["seed"],
            settings={**settings, **variant_settings},
            data=data,
            command=command,
            threads=flags["threads"],
            load=load,
            variant=variant,
        )
        for variant, variant_settings in variants.items()
        for count in counts
    ]
    runs = _show_progress(jobs, flags["repeats"], out)
    for run_ in runs:
        click.echo(_result_line(run_))
    stem = runner.records.run_stem(runs[0].header)
    for path in figures.draw(runs, out, stem):
        if path.suffix == ".png":
            click.echo(f"figure: {path}")


def _settings(presets: dict, flags: dict) -> tuple[str, dict, dict]:
    """The preset in force, the arguments of `train`, and those of `load`."""
    preset = flags["preset"]
    settings = dict(presets[preset])
    changed = {
        name: flags[name]
        for name in ("num_epochs", "global_batch_size", "lr")
        if flags[name] is not None
    }
    for name in changed.keys() - settings.keys():
        flag = name.replace("_", "-")
        raise SettingError(
            f"--{flag} {changed[name]}: this chapter has no such setting"
        )
    settings.update(changed)
    data = dict(settings.pop("data", {}))
    if changed:
        preset = "custom"
    if flags["dry_run"]:
        preset = "dry-run"
        settings["num_epochs"] = 1
        if "global_batch_size" in settings:
            batch = settings["global_batch_size"]
            data = {"n_train": min(2 * batch, 60_000), "n_test": min(batch, 10_000)}
        else:
            data = {"rows": 200, "columns": 20}
    return preset, settings, data


def _result_line(run_) -> str:
    from d2lpar.records import timed_epochs
    from d2lpar.timing import summarize

    header = run_.header
    if run_.points:
        last = run_.points[-1]
        result = f"residual: {last.residual_norm:.6g}, {last.seconds:.3g} sec"
    else:
        seconds = summarize([epoch.seconds for epoch in timed_epochs(run_)])
        result = f"test acc: {run_.epochs[-1].test_acc:.2f}, {seconds} sec/epoch"
    return (
        f"{header.variant + ': ' if header.variant else ''}{result} "
        f"on {', '.join(header.devices)}"
        + (" [synthetic data]" if header.synthetic else "")
    )


def _show_progress(jobs: list, repeats: int, out: Path) -> list:
    """Measure the jobs under a progress bar; the finished runs, in the jobs' order."""
    from d2lpar import runner
    from d2lpar.records import Header, PointRecord

    headers: dict[str, Header] = {}
    total = repeats * sum(job.settings["num_epochs"] for job in jobs)
    if jobs[0].variant:  # solvers stop where they have converged
        total = None
    with tqdm(total=total, unit="epoch", dynamic_ncols=True, leave=False) as bar:
        with (
            logging_redirect_tqdm([log]),
            _terminate_like_ctrl_c(),
            closing(runner.sweep(jobs, repeats, out)) as items,
        ):
            for item in items:
                if isinstance(item, Header):
                    headers[runner.records.run_name(item)] = item
                    words = (
                        item.chapter,
                        item.variant,
                        f"{item.num_devices} device(s)",
                    )
                    bar.set_description(", ".join(filter(None, words)))
                    continue
                if isinstance(item, PointRecord):
                    bar.set_postfix(residual=f"{item.residual_norm:.4g}")
                else:
                    bar.set_postfix(
                        loss=f"{item.train_loss:.3f}",
                        acc=f"{item.test_acc:.3f}",
                        samples_per_sec=f"{item.samples_per_sec:,.0f}",
                    )
                bar.leave = True  # but an error before any epoch stays one line
                bar.update()
    return runner.finished_runs(list(headers.values()), out)


@contextmanager
def _terminate_like_ctrl_c():
    """SIGTERM ends a sweep as Ctrl-C does: the measuring process with it."""

    def interrupt(signum, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@d2lpar.command(name="list")
def list_chapters() -> None:
    """The chapters, a line each, and the seed they come from."""
    for name, file in chapter_files().items():
        title, seed = about(file)
        click.echo(f"{name:24}{title}  [{seed}]")


@d2lpar.command()
@click.argument("records", nargs=-1, required=True)
@click.option("--out", help="Folder for the pictures. [default: beside the records]")
def plot(records: tuple[str, ...], out: str | None) -> None:
    """Draw the pictures of RECORDS again; needs no MXNet."""
    from d2lpar import figures
    from d2lpar import records as recs

    runs = [recs.read(path) for path in records]
    sweeps = recs.group(
        runs, lambda r: (r.path.parent, r.header.chapter, recs.run_stem(r.header))
    )
    for (folder, _, stem), sweep in sweeps.items():
        for path in figures.draw(sweep, Path(out) if out else folder, stem):
            click.echo(path)


@d2lpar.command()
@click.argument("a")
@click.argument("b")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option(
    "--out",
    help="Folder for the picture. [default: none is drawn with --json, --csv; "
    "else beside B]",
)
def compare(a: str, b: str, as_json: bool, as_csv: bool, out: str | None) -> None:
    """Compare record A with B: 1 against 2 devices, or before against after."""
    from d2lpar import compare as comparing
    from d2lpar import figures
    from d2lpar import records as recs

    run_a, run_b = recs.read(a), recs.read(b)
    comparison = comparing.compare(run_a, run_b)
    rows = comparing.comparison_rows(comparison)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(comparison), indent=1, default=str))
    elif as_csv:
        writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        click.echo(comparing.comparison_table(comparison))  # with the differences
    if as_json or as_csv:
        for difference in comparison.differences:
            log.warning("the runs differ also in %s", difference)
    if out or not (as_json or as_csv):
        stem = f"compare-{run_a.path.stem}-{run_b.path.stem}"
        folder = Path(out) if out else run_b.path.parent
        for path in figures.draw_compare(run_a, run_b, folder, stem):
            if path.suffix == ".png":
                click.echo(f"figure: {path}")


@d2lpar.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--out", default="figures", help="The figure folder to examine.")
@click.option("--data-dir", help="Folder to look for the data in first.")
@click.pass_context
def doctor(ctx: click.Context, as_json: bool, out: str, data_dir: str | None) -> None:
    """Examine this machine; exit 1 when training cannot run on it."""
    from d2lpar import doctor as examiner

    checks = examiner.examine(out=out, data_dir=data_dir)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(c) for c in checks], indent=1))
    else:
        click.echo(examiner.report(checks))
    ctx.exit(0 if examiner.can_train(checks) else 1)


@d2lpar.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print the completion script, e.g. eval "$(d2lpar completion bash)"."""
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)(d2lpar, {}, "d2lpar", "_D2LPAR_COMPLETE")
    click.echo(complete.source())


def _guard(call: Callable[[], object], raising: bool = False) -> None:
    """Run a command; show what a person should see as one line, and exit.

    Exit codes: 0; 1 when `doctor` finds that training cannot run; 2 for anything wrong
    that has a message; 130 after Ctrl-C. With `raising` (a notebook) errors pass.
    """
    with _messages_as_lines():
        _call_and_exit(call, raising)


@contextmanager
def _messages_as_lines():
    """Show what the package logs, once: MXNet sets up the root logger, too."""
    if log.handlers:  # a chapter within `d2lpar run`
        yield
        return
    handler, propagate = logging.StreamHandler(), log.propagate
    handler.setFormatter(logging.Formatter("d2lpar: %(message)s"))
    log.addHandler(handler)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = propagate


def _call_and_exit(call: Callable[[], object], raising: bool) -> None:
    try:
        code = call()
    except (KeyboardInterrupt, click.Abort):
        _leave("interrupted", 130)
    except click.ClickException as error:
        if raising:
            raise
        _leave(error.format_message(), 2)
    except D2lparError as error:
        if raising:
            raise
        _leave(str(error), 2)
    except OSError as error:
        if raising or error.strerror is None:
            raise
        _leave(f"{error.filename or 'writing a file'}: {error.strerror}", 2)
    else:
        if isinstance(code, int) and code != 0 and not raising:
            sys.exit(code)


def _leave(message: str, code: int) -> None:
    click.echo(f"d2lpar: {message}", err=True)
    sys.exit(code)


def main() -> None:
    """The console script."""
    _guard(lambda: d2lpar.main(prog_name="d2lpar", standalone_mode=False))


if __name__ == "__main__":
    main()
