"""The last cell of a chapter: measure it on 1, 2, ... devices, and draw the figures.

The same flags serve `d2lpar run CHAPTER` and the chapter's script run alone.
"""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Callable

import click

from d2lpar.cli.error_lines import guard
from d2lpar.cli.options import SETTINGS, as_arguments, run_options
from d2lpar.cli.run import _unless_set, run_sweep
from d2lpar.errors import SettingError

log = logging.getLogger("d2lpar")


def measure(
    name: str,
    train: str,
    presets: dict[str, dict],
    *,
    load: str = "d2lpar.datasets.fashion:load",
    variants: dict[str, dict] | None = None,
    one_thread_each: bool = False,
    environment: dict[str, str] | None = None,
    threads: int | None = None,
) -> None:
    """The last cell of a chapter: measure `train` as the flags say, draw the figures.

    `train` and `load` are "module:function" (see :class:`d2lpar.runs.job.Job`); without
    `load` the data is Fashion-MNIST. `presets` holds the settings of "quick" and
    "book", and those of "dry-run" where two batches of images are not it: arguments of
    `train`, and under "data" those of `load`. `variants` are settings to add for each
    of several methods, all of which are measured; `one_thread_each` is a
    :class:`~d2lpar.runs.job.Job`'s. `environment` is for MXNet to find in the measuring
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
