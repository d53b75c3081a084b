"""The flags of `d2lpar run` and of every chapter run alone: one list for both."""

from __future__ import annotations

import math
from collections.abc import Callable

import click

PRESETS = ("quick", "book")
SETTINGS = (  # flags that override the preset's; None is: not given
    "num_epochs",
    "global_batch_size",
    "lr",
    "micro_batch_size",
    "sync_batch_norm",
    "frames_every",
)


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
                help="Threads of a CPU context. [default: cores // device count; least "
                "squares on several contexts: 1]",
            ),
            click.option(
                "--data",
                type=click.Choice(
                    ("auto", "fashion-mnist", "cryptopunks", "synthetic")
                ),
                default="auto",
                show_default=True,
                help="auto falls back to generated garments or faces, and says so.",
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
                "--micro-batch-size",
                type=click.IntRange(min=1),
                help="Images a device takes at a time; gradients add up. [gan]",
            ),
            click.option(
                "--sync-batch-norm",
                is_flag=True,
                default=None,
                help="BatchNorm over the shards of all devices. [gan]",
            ),
            click.option(
                "--frames-every",
                type=click.IntRange(min=1),
                help="Epochs from one frame of the animation to the next. [gan]",
            ),
            click.option(
                "--mp4", is_flag=True, help="Also write the animation as MP4. [gan]"
            ),
            click.option(
                "--checkpoint-every",
                type=click.IntRange(min=1),
                help="Epochs from one checkpoint to the next; Ctrl-C writes one too.",
            ),
            click.option(
                "--resume",
                metavar="PATH|last",
                help="Go on from a checkpoint, up to --num-epochs in all.",
            ),
            click.option(
                "--dry-run", is_flag=True, help="Train two batches of everything."
            ),
            click.option(
                "--watch",
                is_flag=True,
                help="Record how busy the devices are, once a second, and draw it.",
            ),
            click.option(
                "--profile",
                is_flag=True,
                help="Also write cProfile's table and MXNet's trace; it slows the run.",
            ),
        )
    ):
        command = option(command)
    return command


def peers_options(command: Callable) -> Callable:
    """The flags of `d2lpar compare --peers`."""
    for option in reversed(
        (
            click.option(
                "--peers",
                is_flag=False,
                flag_value="all",
                metavar="[NAMES]",
                help="Time LeNet beside its peers: all, or d2l_notebook, d2l_pytorch, "
                "pytorch_loop, ddp, with commas. The flags below are for this.",
            ),
            click.option(
                "--devices",
                default="auto",
                show_default=True,
                help="As in `run`; also GPUs that only PyTorch can use.",
            ),
            click.option(
                "--num-devices", help="As in `run`. [default: 1, 2, 4, ... and all]"
            ),
            click.option(
                "--preset",
                type=click.Choice(PRESETS),
                default="quick",
                show_default=True,
                help="quick: 12,000 images, 1 round. book: all of them, 3 rounds.",
            ),
            click.option(
                "--rounds",
                type=click.IntRange(min=1),
                help="Processes of each row, in turn. [default: the preset's]",
            ),
            click.option(
                "--num-epochs",
                type=click.IntRange(min=1),
                help="Timed ones; one more warms up. [default: the preset's]",
            ),
            click.option(
                "--threads",
                type=click.IntRange(min=1),
                help="Of each context and process. [default: cores // device count]",
            ),
            click.option(
                "--global-batch-size",
                type=click.IntRange(min=1),
                default=256,
                show_default=True,
            ),
            click.option(
                "--lr",
                type=float,
                callback=_learning_rate,
                default=0.2,
                show_default=True,
            ),
            click.option(
                "--seed", type=click.IntRange(min=0), default=0, show_default=True
            ),
            click.option(
                "--data",
                type=click.Choice(("auto", "fashion-mnist", "synthetic")),
                default="auto",
                show_default=True,
            ),
            click.option("--data-dir", help="Folder to look for the data in first."),
            click.option(
                "--n-train", type=click.IntRange(min=1), help="Override the preset's."
            ),
            click.option(
                "--n-test", type=click.IntRange(min=1), help="Override the preset's."
            ),
        )
    ):
        command = option(command)
    return command


def launch_options(command: Callable) -> Callable:
    """The flags of `d2lpar launch`."""
    shown = {"show_default": True}
    for option in reversed(
        (
            click.option("--workers", type=int, default=2, **shown),
            click.option("--servers", type=int, default=1, **shown),
            click.option(
                "--hosts",
                type=click.Path(exists=True, dir_okay=False),
                help="File of hosts for servers and workers, reached over ssh: a line "
                "each, name [interface]. [default: all on this machine]",
            ),
            click.option(
                "--devices",
                multiple=True,
                help="Of each worker; give it once for all or once for each. [default: "
                "CPU contexts, the cores shared out]",
            ),
            click.option(
                "--interface",
                default="lo",
                help="Network interface of ps-lite. Another than the default opens it "
                "to that network, without authentication or encryption.",
                **shown,
            ),
            click.option(
                "--port",
                type=click.IntRange(1, 65535),
                help="Of the scheduler. [default: a free one]",
            ),
            click.option("--ssh", help="The command, with its options, before a host."),
            click.option("--python", help="Python with d2lpar, on every host."),
            click.option("--directory", help="Where to run on every host."),
            click.option(
                "--kvstore",
                type=click.Choice(("dist_sync", "dist_async")),
                default="dist_sync",
                help="dist_async: servers update with each push, nobody waits.",
                **shown,
            ),
            click.option(
                "--compress",
                type=float,
                metavar="THRESHOLD",
                help="Push gradients in 2 bits a number: -T, 0 or T, rest kept back.",
            ),
            click.option(
                "--timeout",
                type=click.FloatRange(min=1),
                default=120,
                help="Seconds without a step of any worker: then it hangs.",
                **shown,
            ),
            click.option(
                "--heartbeat",
                type=click.IntRange(min=0),
                default=8,
                help="Seconds without a heartbeat: then a role is dead. 0: never.",
                **shown,
            ),
            click.option(
                "--max-restarts", type=click.IntRange(min=0), default=3, **shown
            ),
            click.option(
                "--logs", default="launch-logs", help="Folder for logs.", **shown
            ),
            click.option(
                "--print",
                "print_as",
                is_flag=False,
                flag_value="commands",
                type=click.Choice(("commands", "kubernetes")),
                help="Start nothing: write each role's environment and command, or a "
                "manifest.",
            ),
            click.option(
                "--image", default="d2lpar:latest", help="[kubernetes]", **shown
            ),
            click.argument("arguments", nargs=-1, type=click.UNPROCESSED),
        )
    ):
        command = option(command)
    return command


def as_arguments(ctx: click.Context, flags: dict) -> list[str]:
    """The flags that were given, as they would be written."""
    given = []
    for name, value in flags.items():
        if ctx.get_parameter_source(name) is click.core.ParameterSource.DEFAULT:
            continue
        flag = f"--{name.replace('_', '-')}"
        given += [flag] if value is True else [f"{flag}={value}"]
    return given
