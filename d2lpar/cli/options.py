"""The flags of `run` and `launch`; --help shows the defaults."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import click
from click import Choice, FloatRange, IntRange, option

CONTEXT = {"help_option_names": ["-h", "--help"], "show_default": True}
MAX_COUNT = 2**31 - 1  # more than a run can do, and it fits any int


COUNT, POSITIVE = IntRange(0, MAX_COUNT), IntRange(1, MAX_COUNT)
THREADS = IntRange(1, 1024)  # OpenMP crashes above this
LR = FloatRange(1e-12, 1e15)
PROCESSES = IntRange(1, 256)
OVERRIDE = "Override the preset's."


def text(value: str) -> str:
    """Return an option's text; refuse "", so that an unset variable is no default."""
    if not value.strip():
        raise click.BadParameter("it is empty; write a value, or leave it out")
    return value


FILLED = click.types.FuncParamType(text)


class UserPath(click.Path):
    """A path of a flag; `~` is the home folder, also after `=`, as in --out=~/runs."""

    def convert(
        self,
        value: str,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str:
        """Expand `~`; refuse "" and names that are not UTF-8, which no record holds."""
        try:
            value.encode()
        except UnicodeEncodeError:
            self.fail(
                f"{ascii(value)} is not UTF-8; use another name, or a UTF-8 locale"
            )
        return super().convert(os.path.expanduser(text(value)), param, ctx)


PATH = UserPath(readable=False)


def finite(
    ctx: click.Context, parameter: click.Parameter, value: float | None
) -> float | None:
    """A callback of options: refuses NaN, which lies in every range, and infinities."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value:g} is not a finite number.")
    return value


def _flag(name: str, help: str, **settings) -> Callable:
    return option(name, is_flag=True, help=help, **settings)


def _positive(name: str, help: str | None = None, **settings) -> Callable:
    return option(name, type=POSITIVE, help=help, **settings)


def _options(*options: Callable) -> Callable[[Callable], Callable]:
    """A decorator that gives a command these options, in this order."""

    def decorate(command: Callable) -> Callable:
        for add in reversed(options):
            command = add(command)
        return command

    return decorate


SEED = option("--seed", default=0, type=COUNT, help="Of the random numbers.")
DATA_DIR = option("--data-dir", type=PATH, help="Folder to look for the data in first.")

# The flags of `run` by group, as --help lists them.
GROUPS = {
    "Devices": ("devices", "num_devices", "threads", "tf32", "deterministic"),
    "Data": ("data", "data_dir", "seed"),
    "Training": (
        *("preset", "num_epochs", "global_batch_size", "lr", "micro_batch_size"),
        *("sync_batch_norm", "d_norm", "repeats", "checkpoint_every", "resume"),
        "dry_run",
    ),
    "Output": ("out", "frames_every", "profile", "help"),
}


class Grouped(click.Command):
    """A command whose --help lists its options in :data:`GROUPS`."""

    def format_options(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the options of each group under its name."""
        params = {param.name: param for param in self.params}
        params["help"] = self.get_help_option(ctx)
        for title, names in GROUPS.items():
            with formatter.section(title):
                records = [params[name].get_help_record(ctx) for name in names]
                formatter.write_dl([record for record in records if record])


run_options = _options(
    option(
        "--devices",
        default="auto",
        type=FILLED,
        help="auto, cpu:N, gpu:N (the first N) or gpu:I,J (those).",
    ),
    option(
        "--num-devices",
        type=FILLED,
        help="Counts to sweep, as in 1,2,4. [default: 1,2,4,...]",
    ),
    option(
        "--threads",
        type=THREADS,
        help="Threads per CPU context. [default: cores // device count; least squares "
        "on several contexts: 1]",
    ),
    _flag("--tf32", "float32 on GPUs in TF32: faster, 3 digits. [default: exact]"),
    _flag("--deterministic", "The same bits in every repeat on GPUs; slower."),
    option(
        "--preset",
        default="quick",
        type=Choice(("quick", "book", "sharp", "as-published")),
        help="quick: a minute or two. book: the published recipe, all the data. For "
        "gan, book is 20 minutes on two cores; sharp, minutes on a GPU; as-published, "
        "the notebook's recipe.",
    ),
    _positive("--num-epochs", OVERRIDE),
    _positive("--global-batch-size", OVERRIDE),
    option("--lr", type=LR, callback=finite, help=OVERRIDE),
    _positive("--micro-batch-size", "Images at a time; gradients add up. [gan]"),
    _flag("--sync-batch-norm", "BatchNorm over all devices. [gan]", default=None),
    option(
        "--d-norm",
        type=Choice(("spectral", "batch", "none", "batch-apart")),
        help="What normalises the discriminator. [gan]",
    ),
    _positive("--frames-every", "Epochs between frames of the animation. [gan]"),
    SEED,
    _positive("--repeats", "Repetitions for each device count, in turn.", default=1),
    _flag("--dry-run", "Train a few batches only; estimate the memory needed."),
    option(
        "--data",
        default="auto",
        type=Choice(("auto", "fashion-mnist", "cryptopunks", "sample", "synthetic")),
        help="auto: the whole set if it can be had, else the sample of Fashion-MNIST "
        "in the package, or drawn faces; the output says which.",
    ),
    DATA_DIR,
    _positive("--checkpoint-every", "Epochs between them; Ctrl-C writes one too."),
    option(
        "--resume",
        type=PATH,
        metavar="PATH|last",
        help="Continue from a checkpoint, up to --num-epochs in all.",
    ),
    option("--out", default="runs", type=PATH, help="Folder for records and figures."),
    _flag("--profile", "Also write cProfile's table and MXNet's trace; is slower."),
)

ONE_MEASUREMENT = (
    "launch: workers measure one thing at a time: one --num-devices, no --repeats, a "
    "chapter without several methods"
)

launch_options = _options(
    option("--workers", default=2, type=PROCESSES),
    option("--servers", default=1, type=PROCESSES),
    option(
        "--hosts",
        type=UserPath(exists=True, dir_okay=False),
        help="File of hosts for servers and workers, reached over ssh: one line each, "
        "name [interface]. [default: all on this machine]",
    ),
    option(
        "--devices",
        type=FILLED,
        multiple=True,
        help="Of each worker; give it once for all, or once for each. gpu:N, once, is "
        "N GPUs of each worker's own. [default: CPU contexts that share out the cores]",
    ),
    option(
        "--interface",
        default="lo",
        type=FILLED,
        help="Network interface of ps-lite. Any other than the default opens it to "
        "that network, without authentication or encryption.",
    ),
    option("--port", type=IntRange(1, 65535), help="The scheduler's. [default: free]"),
    option(
        "--kvstore",
        default="dist_sync",
        type=Choice(("dist_sync", "dist_async")),
        help="dist_async: servers update at each push; no worker waits.",
    ),
    option(
        "--compress",
        type=FloatRange(1e-30, 1e30),  # it is a float32
        callback=finite,
        metavar="THRESHOLD",
        help="Push 2 bits per gradient: -T, 0 or T; the rest is added to the next.",
    ),
    option(
        "--max-restarts",
        default=3,
        type=COUNT,
        help="From the last checkpoint when a role dies; with --hosts there are none.",
    ),
    _flag("--print", "Start nothing: print each role's environment and command."),
    click.argument("arguments", nargs=-1, type=click.UNPROCESSED),
)


def given(ctx: click.Context) -> dict[str, object]:
    """The flags that were given on the command line, and their values."""
    default = click.core.ParameterSource.DEFAULT
    options = [p.name for p in ctx.command.params if isinstance(p, click.Option)]
    return {
        name: ctx.params[name]
        for name in options
        if name in ctx.params and ctx.get_parameter_source(name) is not default
    }


def recorded(flags: Mapping[str, object]) -> dict[str, object]:
    """Return the flags as a record's command has them: of absolute paths the last part.

    Records are handed on, and the folders above would show whose they are.

    >>> recorded({"out": "/home/ana/runs", "data_dir": "../data", "lr": 0.1})
    {'out': 'runs', 'data_dir': '../data', 'lr': 0.1}
    """
    short = dict(flags)
    for name in ("out", "data_dir", "resume"):
        path = str(flags.get(name, ""))
        if os.path.isabs(path):
            short[name] = Path(path).name or path
    return short


def as_words(flags: Mapping[str, object]) -> list[str]:
    """Flags as words of a command line; None and False are flags not given.

    >>> as_words({"num_epochs": 3, "num_devices": [1, 2], "tf32": True, "lr": None})
    ['--num-epochs=3', '--num-devices=1,2', '--tf32']
    """
    words = []
    for name, value in flags.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, (list, tuple)):
            value = ",".join(map(str, value))
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words.append(f"{flag}={value}")
    return words
