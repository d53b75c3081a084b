"""The flags of `run`. A flag that is not given is None."""

from __future__ import annotations

import click
from click import Choice, FloatRange, IntRange, Option

CONTEXT = {"help_option_names": ["-h", "--help"], "show_default": True}
POSITIVE = IntRange(1)
PATH = click.Path()
OUT = click.option(
    "-o", "--out", type=PATH, show_default="runs", help="Folder of runs."
)
OVERRIDE = "Replaces the preset's."
PRESETS = ("first", "quick", "book", "sharp", "as-published")
DATA = ("auto", "fashion-mnist", "cryptopunks", "sample", "synthetic")


def _flag(*names: str, help: str) -> Option:
    return Option(names, is_flag=True, default=None, show_default=False, help=help)


RUN = [
    Option(
        ["--devices"],
        show_default="auto",
        help="auto, cpu:N, gpu:N (the first N) or gpu:I,J (those).",
    ),
    Option(
        ["--num-devices"],
        show_default="1,2,4,...",
        help="Counts to sweep, as in 1,2,4.",
    ),
    Option(
        ["--threads"],
        type=IntRange(1, 1024),  # OpenMP crashes above this
        show_default="cores // device count; least squares on several contexts: 1",
        help="Threads per CPU context.",
    ),
    Option(
        ["--preset"],
        type=Choice(PRESETS),
        show_default="quick",
        help="first: that of make run. quick: a minute or two. book: the published "
        "recipe, all the data. For gan: sharp, minutes on a GPU; as-published, the "
        "notebook's recipe.",
    ),
    Option(["--num-epochs"], type=POSITIVE, help=OVERRIDE),
    Option(["--global-batch-size"], type=POSITIVE, help=OVERRIDE),
    Option(["--lr"], type=FloatRange(0, min_open=True), help=OVERRIDE),
    _flag("--dry-run", help="A few batches; the memory that LeNet needs."),
    Option(
        ["--repeats"],
        type=POSITIVE,
        show_default="1",
        help="Processes for each device count, in turn; 4 allow a verdict.",
    ),
    Option(
        ["--seeds"],
        metavar="0,1,...",
        show_default="0",
        help="Seed of the random numbers; several: a training each.",
    ),
    Option(
        ["--checkpoint-every"],
        type=POSITIVE,
        help="Epochs between checkpoints; Ctrl-C writes one, too.",
    ),
    Option(
        ["--resume"],
        metavar="CHECKPOINT",
        help="File to continue from with the same flags, up to --num-epochs.",
    ),
    Option(
        ["--data"],
        type=Choice(DATA),
        show_default="auto",
        help="auto: the whole set if it can be had, else the sample of "
        "Fashion-MNIST in the package, or drawn faces; the output says which.",
    ),
    _flag("-q", "--quiet", help="No progress, one line of result."),
]
