"""The flags of `run`, `launch` and `compare --peers`.

`d2lpar run CHAPTER` and the chapter's script run alone take the same flags. --help
shows the defaults (`CONTEXT`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import click
from click import Choice, FloatRange, IntRange, option

CONTEXT = {"help_option_names": ["-h", "--help"], "show_default": True}
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


def _flag(name: str, help: str, **settings) -> Callable:
    return option(name, is_flag=True, help=help, **settings)


def _positive(name: str, help: str | None = None, **settings) -> Callable:
    return option(name, type=POSITIVE, help=help, **settings)


def _devices(help: str) -> Callable:
    return option("--devices", default="auto", help=help)


def _preset(help: str) -> Callable:
    return option(
        "--preset", default="quick", type=Choice(("quick", "book")), help=help
    )


def _data(*names: str) -> Callable:
    help = "auto falls back to generated data, and says so."
    return option("--data", default="auto", type=Choice(names), help=help)


def _options(*options: Callable) -> Callable[[Callable], Callable]:
    """A decorator that gives a command these options, in this order."""

    def decorate(command: Callable) -> Callable:
        for add in reversed(options):
            command = add(command)
        return command

    return decorate


SEED = option("--seed", default=0, type=COUNT, help="Of the random numbers.")
DATA_DIR = option("--data-dir", help="Folder to look for the data in first.")

run_options = _options(
    _devices("auto, cpu:N, gpu:N (the first N) or gpu:I,J (those)."),
    option("--num-devices", help="Counts to sweep, as in 1,2,4. [default: 1,2,4,...]"),
    _positive(
        "--threads",
        "Threads per CPU context. [default: cores // device count; least squares on "
        "several contexts: 1]",
    ),
    _flag("--tf32", "float32 on GPUs in TF32: faster, 3 digits. [default: exact]"),
    _flag("--deterministic", "The same bits in every repeat on GPUs; slower."),
    _preset("quick: about a minute. book: the published recipe, all the data."),
    _positive("--num-epochs", OVERRIDE),
    _positive("--global-batch-size", OVERRIDE),
    option("--lr", type=float, callback=_learning_rate, help=OVERRIDE),
    _positive("--micro-batch-size", "Images at a time; gradients add up. [gan]"),
    _flag("--sync-batch-norm", "BatchNorm over all devices. [gan]", default=None),
    _positive("--frames-every", "Epochs between frames of the animation. [gan]"),
    SEED,
    _positive("--repeats", "Measure every device count so often, in turn.", default=1),
    _flag("--dry-run", "Train two batches only; estimate the memory needed."),
    _data("auto", "fashion-mnist", "cryptopunks", "synthetic"),
    DATA_DIR,
    _positive("--checkpoint-every", "Epochs between them; Ctrl-C writes one too."),
    option(
        "--resume",
        metavar="PATH|last",
        help="Continue from a checkpoint, up to --num-epochs in all.",
    ),
    option("--out", default="runs", help="Folder for records and figures."),
    _flag("--mp4", "Also write the animation as MP4. [gan]"),
    _flag("--watch", "Record how busy the devices are, once a second, and draw it."),
    _flag("--profile", "Also write cProfile's table and MXNet's trace; is slower."),
)

peers_options = _options(
    option(
        "--peers",
        is_flag=False,
        flag_value="all",
        metavar="[NAMES]",
        help="Time LeNet beside its peers: all, or a list such as ddp,pytorch_loop out "
        "of d2l_notebook, d2l_pytorch, pytorch_loop, ddp. The flags below go with it.",
    ),
    _devices("As in `run`; also GPUs that only PyTorch can use."),
    option("--num-devices", help="As in `run`."),
    _positive("--threads", "Per context and process. [default: cores // device count]"),
    _preset("quick: 12,000 images, 1 round. book: all of them, 3 rounds."),
    _positive("--rounds", "Processes per row, in turn. [default: the preset's]"),
    _positive("--num-epochs", "Timed ones; one warms up. [default: the preset's]"),
    _positive("--global-batch-size", default=256),
    option("--lr", default=0.2, type=float, callback=_learning_rate),
    SEED,
    _data("auto", "fashion-mnist", "synthetic"),
    DATA_DIR,
    _positive("--n-train", OVERRIDE),
    _positive("--n-test", OVERRIDE),
)

launch_options = _options(
    option("--workers", default=2),
    option("--servers", default=1),
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
    option("--ssh", help="The command, with its options, that precedes a host."),
    option("--python", help="Python with d2lpar, on every host."),
    option("--directory", help="Working directory on every host."),
    option(
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
    option(
        "--timeout",
        default=120,
        type=FloatRange(min=1),
        help="Seconds without a step of any worker before the launch restarts.",
    ),
    option(
        "--heartbeat",
        default=8,
        type=COUNT,
        help="Seconds without a heartbeat before a role counts as dead. 0: never.",
    ),
    option("--max-restarts", default=3, type=COUNT),
    option("--logs", default="launch-logs", help="Folder for logs."),
    _flag("--print", "Start nothing: print each role's environment and command."),
    click.argument("arguments", nargs=-1, type=click.UNPROCESSED),
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
