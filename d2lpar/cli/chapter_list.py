"""The chapters: their numbers, in the order in which to read them, and their flags.

`d2lpar run` refuses the flags that a chapter does not take before any of its cells
runs, so they stand here as plain data. `tests/cli/test_chapter_list.py` compares the
list with the scripts in `chapters/` and with what their last cells accept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from d2lpar.errors import SettingError

# What every chapter takes, beside --data auto and --data synthetic: a chapter without a
# data set generates its data.
COMMON = frozenset({"devices", "num_devices", "preset", "dry_run"})
MEASURED = frozenset(
    {"threads", "tf32", "deterministic", "seed", "repeats", "out", "watch", "profile"}
)
RESUMED = frozenset({"checkpoint_every", "resume"})
TRAINED = frozenset({"num_epochs", "global_batch_size", "lr"})
LENET = MEASURED | TRAINED | {"data_dir"}
GAN = LENET | RESUMED | {"micro_batch_size", "sync_batch_norm", "frames_every", "mp4"}


@dataclass(frozen=True)
class Listed:
    """What is said of a chapter without reading its script.

    `takes` are the flags beyond COMMON, named as in Python; `data` is the data set that
    --data may name. With `workers`, `d2lpar launch` can share it among several.
    """

    number: int
    takes: frozenset[str] = frozenset()
    data: str | None = None
    workers: bool = False


CHAPTERS = {
    "devices": Listed(1),
    "arrays": Listed(2),
    "timing": Listed(3, MEASURED),
    "multiple_gpus": Listed(4, LENET | RESUMED, "fashion-mnist"),
    "multiple_gpus_concise": Listed(5, LENET | RESUMED, "fashion-mnist", workers=True),
    "scaling": Listed(6, MEASURED | {"num_epochs", "data_dir"}, "fashion-mnist"),
    "least_squares": Listed(7, MEASURED | {"num_epochs"}),
    "least_squares_large": Listed(8, MEASURED, workers=True),
    "gan": Listed(9, GAN, "cryptopunks"),
    "memory": Listed(10),
    "low_precision": Listed(11, LENET, "fashion-mnist"),
    "kernels": Listed(12),
    "multiple_machines": Listed(13, LENET | RESUMED, "fashion-mnist", workers=True),
}


def ordered(names: Iterable[str]) -> list[str]:
    """The names in the order of the list; those that are not on it come last."""
    last = len(CHAPTERS) + 100
    return sorted(names, key=lambda n: (CHAPTERS.get(n, Listed(last)).number, n))


def unused(name: str, given: Mapping[str, object]) -> dict[str, str]:
    """By flag, why a chapter refuses it; {} for a chapter that is not on the list.

    `given` are the values of the flags on the command line.
    """
    chapter = CHAPTERS.get(name)
    if chapter is None:  # its last cell will say
        return {}
    return refusals(name, given, chapter.takes, chapter.data)


def refusals(
    name: str,
    given: Mapping[str, object],
    takes: Collection[str],
    data: str | None = None,
) -> dict[str, str]:
    """By flag, why it is refused by a chapter that takes these beyond COMMON.

    >>> refusals("timing", {"seed": 3, "mp4": True}, takes=["seed"])
    {'mp4': '--mp4: chapter timing has no use for it; leave it out'}
    """
    why = {}
    for flag, value in given.items():
        shown = as_word(flag, value).replace("=", " ", 1)
        if flag == "data":
            choices = ["auto", "synthetic", *filter(None, [data])]
            if value not in choices:
                why[flag] = f"{shown}: chapter {name} takes {', '.join(choices)}"
        elif flag not in COMMON and flag not in takes:
            why[flag] = f"{shown}: chapter {name} has no use for it; leave it out"
    return why


def check_shared(name: str, shared: bool) -> None:
    """Raise :class:`SettingError` unless `d2lpar launch` can share the chapter."""
    if not shared:
        those = ", ".join(n for n, chapter in CHAPTERS.items() if chapter.workers)
        raise SettingError(
            f"launch: {name} is not shared among workers; write one of {those}"
        )


def as_word(flag: str, value: object) -> str:
    """A flag and its value as a word of a command line.

    >>> as_word("num_epochs", 3)
    '--num-epochs=3'
    """
    word = f"--{flag.replace('_', '-')}"
    return word if value is True else f"{word}={value}"
