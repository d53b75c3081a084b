"""The last cell of a chapter: measure it on 1, 2, ... devices, and draw the figures.

`d2lpar run CHAPTER` and the chapter's script run alone take the same flags. A notebook
has no flags of its own; there they are arguments:

    runs = chapter.measure("lenet", WORKLOAD, PRESETS, num_devices="1,2", lr=0.1)
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from d2lpar.cli import notebook, run
from d2lpar.cli.chapter_list import CHAPTERS, refusals, unused
from d2lpar.cli.error_lines import guard
from d2lpar.cli.options import CONTEXT, as_arguments, given, run_options
from d2lpar.errors import SettingError
from d2lpar.machine.environment import check_environment

if TYPE_CHECKING:
    from d2lpar.records.kinds import Run
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
    **flags: object,
) -> list[Run]:
    """Measure a workload as the flags say, draw its figures, and return the records.

    `presets` holds the settings of "quick" and "book", and those of "dry-run" unless
    two batches of images will do: arguments of the workload's `train`, and under "data"
    those of its `load`. `variants` are the further settings of each of several methods,
    all of which are measured. `one_thread_each` is that of
    :class:`~d2lpar.runs.job.Job`. `environment` holds variables for the measuring
    processes, where the user has set none. `threads` replaces the default of --threads,
    which shares the cores out.

    `flags` are those of `d2lpar run`: ``preset="book"``, ``num_devices="1,2"``,
    ``global_batch_size=64``, ``lr=0.1``, ``data="synthetic"``, ``dry_run=True``, ... A
    script's command line is read after them and wins; a notebook's is not read. A
    notebook shows the curves while they grow, and the figures. Raises
    :class:`SettingError` in a notebook for flags that are unknown or out of range; a
    script exits with the message.
    """
    chapter = run.Chapter(
        name, workload, presets, variants or {"": {}}, one_thread_each
    )

    @click.pass_context
    def command(ctx: click.Context, **flags) -> list[Run]:
        run.refuse_unused(chapter, given(ctx, flags), flags["preset"])
        words = ["d2lpar", "run", name, *as_arguments(ctx, flags)]
        flags["threads"] = flags["threads"] or threads
        with run.environment_unless_set(environment or {}):
            return run.run_sweep(chapter, shlex.join(words), flags)

    runs = _run_as_command(name, command, flags)
    return runs if isinstance(runs, list) else []  # --help measures nothing


def show(name: str, call: Callable, takes: Sequence[str] = (), **flags: object) -> None:
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

    _run_as_command(name, command, flags)


def _run_as_command(name: str, function: Callable, flags: dict[str, object]) -> object:
    """Call a function with these flags, those of the command line, and defaults."""
    in_notebook = notebook.is_here()
    arguments = _as_words(flags) + ([] if in_notebook else sys.argv[1:])
    command = click.command(name, context_settings=CONTEXT)(run_options(function))
    try:
        return guard(
            lambda: command.main(arguments, name, standalone_mode=False), in_notebook
        )
    except click.ClickException as error:  # raised in a notebook only
        raise SettingError(f"{name}: {error.format_message()}") from None


def _as_words(flags: dict[str, object]) -> list[str]:
    """Arguments as words of a command line; None and False are flags not given."""
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


def _check_script() -> None:
    """Refuse what is wrong with the flags of a chapter run alone, before its cells run.

    Its last cell comes to them only after all others. `d2lpar run` does the same.
    """
    script = Path(getattr(sys.modules["__main__"], "__file__", None) or "")
    if script.stem not in CHAPTERS or script.parent.name != "chapters":
        return

    @click.pass_context
    def command(ctx: click.Context, **flags) -> None:
        check_environment()
        run.check_together(flags)
        for why in unused(script.stem, given(ctx, flags)).values():
            raise SettingError(why)
        run.check_devices(flags)

    if _run_as_command(script.stem, command, {}) is not None:
        sys.exit()  # after --help


_check_script()
