"""The last cell of a chapter: measure it on 1, 2, ... devices, and draw the figures.

The same flags serve `d2lpar run CHAPTER` and the chapter's script run alone.
"""

from __future__ import annotations

import importlib
import logging
import os
import shlex
import signal
import sys
from collections.abc import Callable
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median

import click
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from d2lpar.errors import SettingError
from d2lpar.messages import guard
from d2lpar.options import SETTINGS, as_arguments, run_options

log = logging.getLogger("d2lpar")

# Loaders of data that is found on disk or downloaded, and who says which it will be.
FOUND_BY = {
    "d2lpar.datasets:load": "d2lpar.datasets",
    "d2lpar.punks:load": "d2lpar.punks",
}


def measure(
    name: str,
    train: str,
    presets: dict[str, dict],
    *,
    load: str = "d2lpar.datasets:load",
    variants: dict[str, dict] | None = None,
    one_thread_each: bool = False,
    environment: dict[str, str] | None = None,
    threads: int | None = None,
) -> None:
    """The last cell of a chapter: measure `train` as the flags say, draw the figures.

    `train` and `load` are "module:function" (see :class:`d2lpar.runner.Job`); without
    `load` the data is Fashion-MNIST. `presets` holds the settings of "quick" and
    "book", and those of "dry-run" where two batches of images are not it: arguments of
    `train`, and under "data" those of `load`. `variants` are settings to add for each
    of several methods, all of which are measured; `one_thread_each` is a
    :class:`~d2lpar.runner.Job`'s. `environment` is for MXNet to find in the measuring
    processes, where the person has set nothing else. `threads` are those of a CPU
    context on every device count, without --threads (None: they share the cores out).
    In a notebook there are no flags: the defaults are used.
    """
    in_notebook = "ipykernel" in sys.modules
    arguments = [] if in_notebook else sys.argv[1:]

    @click.command(name, context_settings={"help_option_names": ["-h", "--help"]})
    @run_options
    @click.pass_context
    def command(ctx: click.Context, **flags) -> None:
        words = ["d2lpar", "run", name, *as_arguments(ctx, flags)]
        flags["threads"] = flags["threads"] or threads
        plan = (name, train, presets, load, variants or {"": {}}, one_thread_each)
        with _unless_set(environment or {}):
            run_sweep(*plan, shlex.join(words), **flags)

    guard(lambda: command.main(arguments, name, standalone_mode=False), in_notebook)


@contextmanager
def _unless_set(environment: dict[str, str]):
    """Set variables for processes to come, but for those that the person has set."""
    if not environment:
        yield
        return
    from d2lpar._mxnet import ENGINE_DEFAULTS

    before = {name: os.environ.get(name) for name in environment}
    for name, value in environment.items():
        if before[name] in (None, ENGINE_DEFAULTS.get(name)):
            os.environ[name] = value
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def show(name: str, call: Callable) -> None:
    """The last cell of a chapter without a training: ``call(devices, **flags)``.

    Takes the same flags as :func:`measure`; `call` gets the devices that they name, all
    at once, or with --num-devices the first so many of them, a count after the other.
    """
    in_notebook = "ipykernel" in sys.modules
    arguments = [] if in_notebook else sys.argv[1:]

    @click.command(name, context_settings={"help_option_names": ["-h", "--help"]})
    @run_options
    def command(**flags) -> None:
        from d2lpar import devices

        for setting in (*SETTINGS, "checkpoint_every", "resume"):
            if flags[setting] is not None:
                flag = setting.replace("_", "-")
                raise SettingError(
                    f"--{flag} {flags[setting]}: this chapter has no such setting"
                )
        chosen = devices.parse(flags.pop("devices"))
        counts = flags.pop("num_devices") or str(len(chosen))
        for count in devices.parse_counts(counts, len(chosen)):
            call(chosen[:count], **flags)

    guard(lambda: command.main(arguments, name, standalone_mode=False), in_notebook)


def run_sweep(
    name: str,
    train: str,
    presets: dict[str, dict],
    load: str,
    variants: dict[str, dict],
    one_thread_each: bool,
    command: str,
    **flags,
) -> None:
    from d2lpar import devices, figures, memory, runner, workers

    place = workers.place()
    if flags["resume"] and flags["repeats"] > 1:
        raise SettingError("--resume with --repeats: a training is taken up once")
    available = len(devices.parse(flags["devices"]))
    default = str(available) if place else devices.default_counts(available)
    counts = devices.parse_counts(flags["num_devices"] or default, available)
    preset, settings, data = settings_of(presets, flags)
    data["seed"] = flags["seed"]
    if load in FOUND_BY:
        finder = importlib.import_module(FOUND_BY[load])
        data["data_dir"] = flags["data_dir"]
        data["name"] = finder.locate(flags["data"], flags["data_dir"])
    out = Path(flags["out"]) / name
    runner.records.check_writable(out)
    resume = workers.resume_after_restart(flags["resume"], out)
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
            profile_in=str(out) if flags["profile"] else None,
            one_thread_each=one_thread_each,
            watch=flags["watch"],
            checkpoints_in=str(out),
            checkpoint_every=flags["checkpoint_every"],
            resume=resume,
        )
        for variant, variant_settings in variants.items()
        for count in counts
    ]
    if flags["dry_run"] and place is None:
        _, planned, all_data = settings_of(presets, {**flags, "dry_run": False})
        chosen = devices.parse(flags["devices"])
        for count in counts:
            text = memory.report(train, planned, chosen[:count], all_data)
            if text is not None:
                click.echo(text)
    if place is not None and len(jobs) * flags["repeats"] > 1:
        raise SettingError(
            "launch: workers measure one thing at a time: one --num-devices, no "
            "--repeats, a chapter without several methods"
        )
    if place is not None and place.number > 0:
        for _ in runner.follow(jobs[0]):
            pass
        return
    runs = _show_progress(jobs, flags["repeats"], out)
    for run_ in runs:
        click.echo(_result_line(run_))
    stem = runner.records.run_stem(runs[0].header)
    if place is not None and place.variant:
        stem += f"-{place.variant}"  # one launch's pictures are not another's
    drawn = figures.draw(runs, out, stem, data_dir=flags["data_dir"], mp4=flags["mp4"])
    for path in drawn:
        if path.suffix != ".svg":
            click.echo(f"figure: {path}")
    if flags["profile"]:
        click.echo(f"profiles: {out / stem}*.profile.txt, {out / stem}*.trace.json")


def settings_of(presets: dict, flags: dict) -> tuple[str, dict, dict]:
    """The preset in force, the arguments of `train`, and those of `load`."""
    preset = "dry-run" if flags["dry_run"] else flags["preset"]
    changed = {name: flags[name] for name in SETTINGS if flags.get(name) is not None}
    if flags["dry_run"] and "num_epochs" in presets[flags["preset"]]:
        changed.setdefault("num_epochs", 1)
    elif changed and not flags["dry_run"]:
        preset = "custom"
    settings = dict(presets[flags["preset"]])
    for name in changed.keys() - settings.keys():
        flag = name.replace("_", "-")
        raise SettingError(
            f"--{flag} {changed[name]}: this chapter has no such setting"
        )
    if flags["dry_run"]:
        settings.update(presets.get("dry-run", {}))
    settings.update(changed)
    data = dict(settings.pop("data", {}))
    if flags["dry_run"] and "dry-run" not in presets:
        batch = settings["global_batch_size"]
        data = {"n_train": min(2 * batch, 60_000), "n_test": min(batch, 10_000)}
    if flags["profile"]:
        preset += "-profile"  # its times must not pass for measurements
    return preset, settings, data


def _result_line(run_) -> str:
    from d2lpar.precisions import merged
    from d2lpar.records import timed_epochs
    from d2lpar.timing import summarize

    header = run_.header
    if run_.timings:
        result = f"{len(run_.timings)} timings"
    elif run_.steps:
        fastest = max(run_.steps, key=lambda s: s.global_batch_size / median(s.seconds))
        result = (
            f"up to {fastest.global_batch_size / median(fastest.seconds):,.0f} "
            f"samples/s, at a batch of {fastest.global_batch_size:,}"
        )
    elif run_.points:
        last = run_.points[-1]
        result = f"residual: {last.residual_norm:.6g}, {last.seconds:.3g} sec"
    elif run_.precisions:
        result = "; ".join(
            f"{row.precision} {row.test_acc:.3f}, {row.images_per_sec:,.0f} images/s"
            for row in merged(run_.precisions)
            if row.supported and row.weights == "trained"
        )
    else:
        seconds = summarize([epoch.seconds for epoch in timed_epochs(run_)])
        learnt = (
            f"quality {run_.frames[0].quality:.3f} to {run_.frames[-1].quality:.3f}"
            if run_.frames
            else f"test acc: {run_.epochs[-1].test_acc:.2f}"
        )
        result = f"{learnt}, {seconds} sec/epoch"
    return (
        f"{header.variant + ': ' if header.variant else ''}{result} "
        f"on {', '.join(header.devices)}"
        + (" [synthetic data]" if header.synthetic else "")
    )


def _show_progress(jobs: list, repeats: int, out: Path) -> list:
    """Measure the jobs under a progress bar; the finished runs, in the jobs' order."""
    from d2lpar import runner
    from d2lpar.records import EPOCHS, Header, PointRecord
    from d2lpar.scaling_model import AllReduceRecord, ScaledEpoch, StepRecord
    from d2lpar.timing import TimingRecord

    counted = (
        *EPOCHS, PointRecord, TimingRecord, StepRecord, AllReduceRecord, ScaledEpoch,
    )  # fmt: skip
    headers: dict[str, Header] = {}
    total = repeats * sum(job.settings.get("num_epochs", 0) for job in jobs)
    if jobs[0].variant:  # solvers stop where they have converged
        total = None
    unit = "line" if jobs[0].variant else "epoch" if total else "timing"
    with tqdm(total=total or None, unit=unit, dynamic_ncols=True, leave=False) as bar:
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
                if not isinstance(item, counted):
                    continue
                bar.set_postfix(_progress_of(item))
                bar.leave = True  # but an error before any epoch stays one line
                bar.update()
    return runner.finished_runs(list(headers.values()), out)


def _progress_of(line) -> dict[str, str]:
    """What the bar shows of a record's line."""
    from d2lpar.records import GanEpochRecord, PointRecord
    from d2lpar.scaling_model import AllReduceRecord, ScaledEpoch, StepRecord
    from d2lpar.timing import TimingRecord, summarize

    if isinstance(line, TimingRecord):
        ms = 1e3 * summarize(line.seconds).median
        return {line.operation: f"{line.library}, {line.form}: {ms:.3g} ms"}
    if isinstance(line, StepRecord):
        ms = 1e3 * median(line.seconds)
        return {"batch": str(line.global_batch_size), "step": f"{ms:.3g} ms"}
    if isinstance(line, AllReduceRecord):
        return {"all-reduce": f"{line.variant}, {line.num_bytes:,} bytes"}
    if isinstance(line, ScaledEpoch):
        return {"batch": str(line.global_batch_size), "acc": f"{line.test_acc}"}
    if isinstance(line, PointRecord):
        return {"residual": f"{line.residual_norm:.4g}"}
    if isinstance(line, GanEpochRecord):
        shown = {"D": f"{line.d_loss:.3f}", "G": f"{line.g_loss:.3f}"}
    else:
        shown = {"loss": f"{line.train_loss:.3f}", "acc": f"{line.test_acc:.3f}"}
    return {**shown, "samples_per_sec": f"{line.samples_per_sec:,.0f}"}


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
