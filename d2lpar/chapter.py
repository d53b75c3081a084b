"""The last cell of a chapter: measure it on 1, 2, ... devices, and draw the figures.

`d2lpar run CHAPTER` and the chapter's script run alone take the same flags.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from d2lpar.cli import run
from d2lpar.cli.chapter_list import refusals
from d2lpar.cli.error_lines import guard
from d2lpar.cli.options import CONTEXT, as_arguments, given, run_options
from d2lpar.errors import SettingError

if TYPE_CHECKING:
    from d2lpar.training import Workload


def measure(
    name: str,
    workload: Workload,
    presets: dict[str, dict],
    *,
    variants: dict[str, dict] | None = None,
    one_thread_each: bool = False,
    environment: dict[str, str] | None = None,
    threads: int | None = None,
) -> None:
    """Measure a workload as the flags say, and draw its figures.

    `presets` holds the settings of "quick" and "book", and those of "dry-run" unless
    two batches of images will do: arguments of the workload's `train`, and under "data"
    those of its `load`. `variants` are the further settings of each of several methods,
    all of which are measured. `one_thread_each` is that of
    :class:`~d2lpar.runs.job.Job`. `environment` holds variables for the measuring
    processes, where the user has set none. `threads` replaces the default of --threads,
    which shares the cores out. In a notebook there are no flags.
    """
    chapter = run.Chapter(
        name, workload, presets, variants or {"": {}}, one_thread_each
    )

    @click.pass_context
    def command(ctx: click.Context, **flags) -> None:
        run.refuse_unused(chapter, given(ctx, flags), flags["preset"])
        words = ["d2lpar", "run", name, *as_arguments(ctx, flags)]
        flags["threads"] = flags["threads"] or threads
        with run.environment_unless_set(environment or {}):
            run.run_sweep(chapter, shlex.join(words), flags)

    _run_as_command(name, command)


def show(name: str, call: Callable, takes: Sequence[str] = ()) -> None:
    """Call ``call(devices, preset=, dry_run=)``: for a chapter that has no workload.

    `call` gets all devices that the flags name or, with --num-devices, the first so
    many of them for each count. `takes` are further flags of :func:`measure`, named as
    in Python, which `call` takes as keywords; all others are refused.
    """

    @click.pass_context
    def command(ctx: click.Context, **flags) -> None:
        from d2lpar import devices

        for why in refusals(name, given(ctx, flags), takes).values():
            raise SettingError(why)
        chosen = devices.parse(flags["devices"])
        counts = flags["num_devices"] or str(len(chosen))
        more = {flag: flags[flag] for flag in ("preset", "dry_run", *takes)}
        for count in devices.parse_counts(counts, len(chosen)):
            call(chosen[:count], **more)

    _run_as_command(name, command)


def _run_as_command(name: str, function: Callable) -> None:
    """Call a function with the flags of the command line, or with defaults."""
    in_notebook = "ipykernel" in sys.modules
    arguments = [] if in_notebook else sys.argv[1:]
    command = click.command(name, context_settings=CONTEXT)(run_options(function))
    guard(lambda: command.main(arguments, name, standalone_mode=False), in_notebook)
