"""The flags of `run`, `launch` and `compare --peers`, grouped by what they choose.

`d2lpar run CHAPTER` and the chapter's script run alone take the same flags.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import click
from click import Choice, FloatRange, IntRange, option

PRESETS = ("quick", "book")
SETTINGS = (  # the flags that override a preset's settings; None where not given
    "num_epochs",
    "global_batch_size",
    "lr",
    "micro_batch_size",
    "sync_batch_norm",
    "frames_every",
)
COUNT, POSITIVE = IntRange(min=0), IntRange(min=1)
OVERRIDE = "Override the preset's."


def _learning_rate(
    ctx: click.Context, parameter: click.Parameter, lr: float | None
) -> float | None:
    if lr is not None and not (math.isfinite(lr) and lr > 0):
        raise click.BadParameter(f"{lr:g} is not a finite number greater than 0.")
    return lr


def _with_default(*names: str, default, **settings) -> Callable:
    """An option whose default --help shows."""
    return option(*names, default=default, show_default=True, **settings)


def _flag(name: str, help: str) -> Callable:
    return option(name, is_flag=True, help=help)


def _positive(name: str, help: str) -> Callable:
    return option(name, type=POSITIVE, help=help)


def _options(*groups: tuple[Callable, ...]) -> Callable[[Callable], Callable]:
    """A decorator that gives a command the options of all `groups`, in this order."""

    def decorate(command: Callable) -> Callable:
        for group in reversed(groups):
            for add in reversed(group):
                command = add(command)
        return command

    return decorate


SEED = _with_default("--seed", default=0, type=COUNT, help="Of the random numbers.")
DATA_DIR = option("--data-dir", help="Folder to look for the data in first.")

run_options = _options(
    (  # devices
        _with_default(
            "--devices",
            default="auto",
            help="auto, cpu:N, gpu:N (the first N) or gpu:I,J (those).",
        ),
        option(
            "--num-devices",
            help="Counts to sweep, e.g. 1,2,4. [default: 1, 2, 4, ... and all]",
        ),
        _positive(
            "--threads",
            "Threads per CPU context. [default: cores // device count; least "
            "squares on several contexts: 1]",
        ),
    ),
    (  # recipe
        _with_default(
            "--preset",
            default="quick",
            type=Choice(PRESETS),
            help="quick: about a minute. book: the published recipe, all the data.",
        ),
        _positive("--num-epochs", OVERRIDE),
        _positive("--global-batch-size", OVERRIDE),
        option("--lr", type=float, callback=_learning_rate, help=OVERRIDE),
        _positive(
            "--micro-batch-size",
            "Images per device at a time; gradients add up. [gan]",
        ),
        option(
            "--sync-batch-norm",
            is_flag=True,
            default=None,
            help="BatchNorm over the shards of all devices. [gan]",
        ),
        _positive("--frames-every", "Epochs between frames of the animation. [gan]"),
        SEED,
        _with_default(
            "--repeats",
            default=1,
            type=POSITIVE,
            help="Measure every device count this many times, in turn.",
        ),
        _flag("--dry-run", "Train two batches only; estimate the memory needed."),
    ),
    (  # data
        _with_default(
            "--data",
            default="auto",
            type=Choice(("auto", "fashion-mnist", "cryptopunks", "synthetic")),
            help="auto falls back to generated garments or faces, and says so.",
        ),
        DATA_DIR,
    ),
    (  # checkpoints
        _positive(
            "--checkpoint-every",
            "Epochs between checkpoints; Ctrl-C writes one too.",
        ),
        option(
            "--resume",
            metavar="PATH|last",
            help="Continue from a checkpoint, up to --num-epochs in all.",
        ),
    ),
    (  # output
        _with_default(
            "--out", default="figures", help="Folder for records and figures."
        ),
        _flag("--mp4", "Also write the animation as MP4. [gan]"),
        _flag(
            "--watch", "Record how busy the devices are, once a second, and draw it."
        ),
        _flag(
            "--profile",
            "Also write cProfile's table and MXNet's trace; slows the run down.",
        ),
    ),
)

peers_options = _options(
    (
        option(
            "--peers",
            is_flag=False,
            flag_value="all",
            metavar="[NAMES]",
            help="Time LeNet beside its peers: all, or a list such as ddp,pytorch_loop "
            "out of d2l_notebook, d2l_pytorch, pytorch_loop, ddp. The flags below go "
            "with it.",
        ),
    ),
    (  # devices
        _with_default(
            "--devices",
            default="auto",
            help="As in `run`; also GPUs that only PyTorch can use.",
        ),
        option("--num-devices", help="As in `run`. [default: 1, 2, 4, ... and all]"),
        _positive(
            "--threads",
            "Per context and process. [default: cores // device count]",
        ),
    ),
    (  # recipe
        _with_default(
            "--preset",
            default="quick",
            type=Choice(PRESETS),
            help="quick: 12,000 images, 1 round. book: all of them, 3 rounds.",
        ),
        _positive("--rounds", "Processes per row, in turn. [default: the preset's]"),
        _positive(
            "--num-epochs",
            "Timed epochs, after one that warms up. [default: the preset's]",
        ),
        _with_default("--global-batch-size", default=256, type=POSITIVE),
        _with_default("--lr", default=0.2, type=float, callback=_learning_rate),
        SEED,
    ),
    (  # data
        _with_default(
            "--data",
            default="auto",
            type=Choice(("auto", "fashion-mnist", "synthetic")),
        ),
        DATA_DIR,
        _positive("--n-train", OVERRIDE),
        _positive("--n-test", OVERRIDE),
    ),
)

launch_options = _options(
    (  # who takes part
        _with_default("--workers", default=2, type=int),
        _with_default("--servers", default=1, type=int),
        option(
            "--hosts",
            type=click.Path(exists=True, dir_okay=False),
            help="File of hosts for servers and workers, reached over ssh: one line "
            "each, name [interface]. [default: all on this machine]",
        ),
        option(
            "--devices",
            multiple=True,
            help="Of each worker; give it once for all, or once for each. gpu:N, given "
            "once, is N GPUs of each worker's own. [default: CPU contexts that share "
            "out the cores]",
        ),
    ),
    (  # how they reach each other
        _with_default(
            "--interface",
            default="lo",
            help="Network interface of ps-lite. Any other than the default opens it "
            "to that network, without authentication or encryption.",
        ),
        option(
            "--port",
            type=IntRange(1, 65535),
            help="Of the scheduler. [default: a free one]",
        ),
        option("--ssh", help="The command, with its options, that precedes a host."),
        option("--python", help="Python with d2lpar, on every host."),
        option("--directory", help="Working directory on every host."),
    ),
    (  # how they share gradients
        _with_default(
            "--kvstore",
            default="dist_sync",
            type=Choice(("dist_sync", "dist_async")),
            help="dist_async: servers update at each push; no worker waits.",
        ),
        option(
            "--compress",
            type=float,
            metavar="THRESHOLD",
            help="Push 2 bits per gradient: -T, 0 or T; the rest is added to the next.",
        ),
    ),
    (  # supervision
        _with_default(
            "--timeout",
            default=120,
            type=FloatRange(min=1),
            help="Seconds without a step of any worker before the launch restarts.",
        ),
        _with_default(
            "--heartbeat",
            default=8,
            type=COUNT,
            help="Seconds without a heartbeat before a role counts as dead. 0: never.",
        ),
        _with_default("--max-restarts", default=3, type=COUNT),
        _with_default("--logs", default="launch-logs", help="Folder for logs."),
        option(
            "--print",
            "print_only",
            is_flag=True,
            help="Start nothing: print each role's environment and command.",
        ),
    ),
    (click.argument("arguments", nargs=-1, type=click.UNPROCESSED),),
)


def as_arguments(ctx: click.Context, flags: dict) -> list[str]:
    """The flags that were given on the command line, as words of a command line."""
    given = []
    for name, value in flags.items():
        if ctx.get_parameter_source(name) is click.core.ParameterSource.DEFAULT:
            continue
        flag = f"--{name.replace('_', '-')}"
        given += [flag] if value is True else [f"{flag}={value}"]
    return given
