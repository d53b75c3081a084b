"""The last cell of a chapter: measure it on 1, 2, ... devices, and draw the figures."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from d2lpar.cli.error_lines import guard
from d2lpar.cli.main import run
from d2lpar.cli.options import as_words
from d2lpar.cli.progress import in_notebook
from d2lpar.errors import SettingError

if TYPE_CHECKING:
    from d2lpar.records.kinds import Run


def measure(name: str, **flags: object) -> list[Run]:
    """Do what ``d2lpar run NAME`` does, and return the records.

    `flags` are those of the command: ``preset="book"``, ``num_devices="1,2"``,
    ``global_batch_size=64``, ``lr=0.1``, ``data="sample"``, ``dry_run=True``, ... A
    chapter that runs as a script hands its command line on; a notebook has none. Raises
    :class:`SettingError` in a notebook for flags that are unknown or out of range; a
    script exits with the message.
    """
    interactive = in_notebook()
    words = as_words(flags) + ([] if interactive else sys.argv[1:])

    def command() -> object:
        return run.main([name, *words], f"d2lpar run {name}", standalone_mode=False)

    try:
        runs = guard(command, raising=interactive)
    except click.ClickException as error:  # raised in a notebook only
        raise SettingError(f"{name}: {error.format_message()}") from None
    return runs if isinstance(runs, list) else []  # --help measures nothing
