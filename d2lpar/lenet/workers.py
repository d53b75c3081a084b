"""The training of :mod:`d2lpar.lenet.concise` on several workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from d2lpar.lenet import concise
from d2lpar.records.kinds import EpochRecord
from d2lpar.workers.group import Workers


def train(
    num_devices: int | None = None, *, workers: Workers, **options: Any
) -> Iterator[EpochRecord]:
    """Train as one of `workers`, yielding one record per epoch.

    The other arguments are those of :func:`d2lpar.lenet.concise.train`. All workers
    need the same data and state. The loss is over all of them; each evaluates the whole
    test set, whose accuracy is therefore the same.
    """
    return concise.train(num_devices, workers=workers, **options)
