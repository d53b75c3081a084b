"""The flags of `run` and `launch`. A flag of `run` that is not given is None."""

from __future__ import annotations

import math
from collections.abc import Callable

import click
from click import Choice, FloatRange, IntRange, option

CONTEXT = {"help_option_names": ["-h", "--help"], "show_default": True}
MAX_COUNT = 2**31 - 1  # more than a run can do, and it fits any int


class Count(IntRange):
    """Whole numbers that fit any int. The help shows their lower bound only."""

    def convert(self, value, param, ctx):
        number = super().convert(value, param, ctx)
        if number > MAX_COUNT:
            self.fail(f"{number} is above {MAX_COUNT}.", param, ctx)
        return number


COUNT, POSITIVE = Count(0), Count(1)
THREADS = IntRange(1, 1024)  # OpenMP crashes above this
LR = FloatRange(1e-12, 1e15)
PROCESSES = IntRange(1, 256)
PATH = click.Path()
OVERRIDE = "Replaces the preset's."


def finite(
    ctx: click.Context, parameter: click.Parameter, value: float | None
) -> float | None:
    """Refuse NaN and infinities, as click's callback: NaN passes range checks."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value:g} is not a finite number.")
    return value


def seeds(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> list[int] | None:
    """Return the seeds of a list such as 0,1,2, as click's callback."""
    if value is None:
        return None
    if not all(word.strip().isdecimal() for word in value.split(",")):
        raise click.BadParameter(f"{value}: write whole numbers, as in 0,1,2.")
    found = [int(word) for word in value.split(",")]
    if len(set(found)) < len(found) or max(found) > MAX_COUNT:
        raise click.BadParameter(f"{value}: write each seed once, up to {MAX_COUNT}.")
    return found


def _flag(name: str, help: str) -> Callable:
    return option(name, is_flag=True, default=None, show_default=False, help=help)


def _options(*options: Callable) -> Callable[[Callable], Callable]:
    """Return a decorator that gives a command these options, in this order."""

    def decorate(command: Callable) -> Callable:
        for add in reversed(options):
            command = add(command)
        return command

    return decorate


run_options = _options(
    option(
        "--devices",
        show_default="auto",
        help="auto, cpu:N, gpu:N (the first N) or gpu:I,J (those).",
    ),
    option(
        "--num-devices", show_default="1,2,4,...", help="Counts to sweep, as in 1,2,4."
    ),
    option(
        "--threads",
        type=THREADS,
        show_default="cores // device count; least squares on several contexts: 1",
        help="Threads per CPU context.",
    ),
    _flag("--deterministic", "The same bits in every repeat on GPUs; slower."),
    _flag(
        "--same-bits",
        "The same bits on any number of devices; slower. [multiple_gpus and _concise]",
    ),
    option(
        "--preset",
        type=Choice(("quick", "book", "sharp", "as-published")),
        show_default="quick",
        help="quick: a minute or two. book: the published recipe, all the data. For "
        "gan, book is 20 minutes on two cores; sharp, minutes on a GPU; as-published, "
        "the notebook's recipe.",
    ),
    option("--num-epochs", type=POSITIVE, help=OVERRIDE),
    option("--global-batch-size", type=POSITIVE, help=OVERRIDE),
    option("--lr", type=LR, callback=finite, help=OVERRIDE),
    _flag("--sync-batch-norm", "BatchNorm over all devices. [gan]"),
    option(
        "--d-norm",
        type=Choice(("spectral", "batch", "none", "batch-apart")),
        help="Normalisation of the discriminator. [gan]",
    ),
    option(
        "--frames-every",
        type=POSITIVE,
        help="Epochs between frames of the animation. [gan]",
    ),
    option("--seed", type=COUNT, show_default="0", help="Seed of the random numbers."),
    option(
        "--repeats",
        type=POSITIVE,
        show_default="1",
        help="Processes for each device count, in turn; 4 allow a rank test.",
    ),
    option(
        "--seeds",
        callback=seeds,
        metavar="0,1,2,...",
        help="A training per seed, in one table and picture.",
    ),
    _flag(
        "--dry-run", "Train a few batches only; estimate the memory that LeNet needs."
    ),
    option(
        "--data",
        type=Choice(("auto", "fashion-mnist", "cryptopunks", "sample", "synthetic")),
        show_default="auto",
        help="auto: the whole set if it can be had, else the sample of Fashion-MNIST "
        "in the package, or drawn faces; the output says which.",
    ),
    option("--data-dir", type=PATH, help="Folder to look for the data in first."),
    option(
        "--checkpoint-every",
        type=POSITIVE,
        help="Epochs between checkpoints; Ctrl-C writes one, too.",
    ),
    option(
        "--resume",
        metavar="PATH|last",
        help="Checkpoint to continue from, up to --num-epochs in all.",
    ),
    option(
        "--out", type=PATH, show_default="runs", help="Folder for records and figures."
    ),
)

launch_options = _options(
    option("--workers", default=2, type=PROCESSES),
    option("--servers", default=1, type=PROCESSES),
    option(
        "--hosts",
        type=click.Path(exists=True, dir_okay=False),
        help="File of hosts for servers and workers, reached over ssh: one line each, "
        "name [interface]. [default: all on this machine]",
    ),
    option(
        "--devices",
        multiple=True,
        help="Of each worker; give it once for all, or once for each. gpu:N, once, is "
        "N GPUs of each worker's own. [default: CPU contexts that share out the cores]",
    ),
    option(
        "--interface",
        default="lo",
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
