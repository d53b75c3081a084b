"""`d2lpar compare --peers`: time ours and the peers, print the rows, draw the bars."""

from __future__ import annotations

import csv
import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path

from d2lpar import datasets, devices
from d2lpar.figures import bars
from d2lpar.machine import cuda
from d2lpar.records import atomic
from d2lpar.records.tables import plain_table
from d2lpar.runs import in_turn
from d2lpar.runs.peers import (
    PRESETS,
    Place,
    Recipe,
    Row,
    base_name,
    kind_and_ids,
    measure,
    names_of,
    rows,
)

log = logging.getLogger("d2lpar")


def compare(flags: dict, out: str | None, printed: str, command: str) -> None:
    """Measure, print "table", "json" or "csv", and draw.

    `flags` are those of :func:`d2lpar.cli.options.peers_options`. The record and the
    pictures are ``<out>/<preset>-<kind><most devices>.*``.
    """
    peers, place = names_of(flags["peers"]), _place(flags)
    recipe, rounds = _recipe(flags)
    folder = Path(out or "figures/peers")
    atomic.check_writable(folder)
    data = datasets.load(**recipe.data)
    recipe.check(data, place.counts)

    arms, lines, unchecked = measure(peers, recipe, place, rounds)
    work = f"an epoch of LeNet, {len(data.y_train):,} images, "
    work += f"batch {recipe.global_batch_size}" + " [synthetic data]" * data.synthetic
    gpus = cuda.cuda_devices()
    stem = _stem(flags, place, data)
    run = in_turn.record(
        folder / f"{stem}.jsonl",
        arms,
        lines,
        work=work,
        command=command,
        on_gpus=[gpus[i].name for i in place.ids] if place.kind == "gpu" else [],
        extra={
            "dataset": data.name,
            "dataset_sha256": data.sha256,
            "synthetic": data.synthetic,
            "seed": recipe.seed,
            "settings": {**recipe.settings, "threads": place.threads, **data.sizes},
            "first_losses_checked": unchecked is None,
        },
    )
    drawn = bars.draw([run], folder, stem)
    _print(rows(run, base_name(place)), printed)
    if unchecked and peers:
        log.warning("the peers' losses were not compared with ours: %s", unchecked)
    if printed == "table":
        print(f"record: {run.path}\nfigure: {drawn[0]}")


def _place(flags: dict) -> Place:
    kind, ids = kind_and_ids(flags["devices"])
    counts = flags["num_devices"] or devices.default_counts(len(ids))
    counts = devices.parse_counts(counts, len(ids))
    return Place(kind, ids, counts, flags["threads"])


def _recipe(flags: dict) -> tuple[Recipe, int]:
    """What they all do, and in how many rounds."""
    preset = {k: flags.get(k) or v for k, v in PRESETS[flags["preset"]].items()}
    data = {
        "name": datasets.locate(flags["data"], flags["data_dir"]),
        "data_dir": flags["data_dir"],
        "n_train": preset["n_train"],
        "n_test": preset["n_test"],
    }
    recipe = {k: flags[k] for k in ("global_batch_size", "lr", "seed")}
    return Recipe(data, preset["num_epochs"], **recipe), preset["rounds"]


def _stem(flags: dict, place: Place, data: datasets.ImageData) -> str:
    custom = any(flags.get(name) for name in (*PRESETS[flags["preset"]], "threads"))
    preset = "custom" if custom else flags["preset"]
    synthetic = "-synthetic" * data.synthetic
    return f"{preset}{synthetic}-{place.kind}{max(place.counts)}"


def _print(rows: list[Row], printed: str) -> None:
    if printed == "table":
        print(table(rows))
    elif printed == "json":
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        writer = csv.DictWriter(sys.stdout, list(as_csv(rows[0])), lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(as_csv, rows))


def as_csv(row: Row) -> dict:
    """A row with its summary's numbers side by side."""
    values = asdict(row)
    s = values.pop("seconds") or dict.fromkeys(("median", "q1", "q3", "n"))
    return {**values, **s}


def table(rows: list[Row]) -> str:
    """One line per row; times relative to the base's, which is the row with 1.00."""
    columns = ["", "sec/epoch", "quartiles", "n", "samples/s", "accuracy", "of base"]
    cells, absent = [], []
    for row in rows:
        s = row.seconds
        if s is None:
            absent.append(f"{row.name}: not measured: {row.why}")
            continue
        times = [f"{s.median:.3g}", f"{s.q1:.3g}-{s.q3:.3g}", str(s.n)]
        speed = [f"{row.samples_per_sec:,.0f}", f"{row.test_acc:.3f}"]
        cells.append([row.name, *times, *speed, f"{row.of_base:.2f}"])
    base = next(row.name for row in rows if row.of_base == 1)
    return "\n".join([plain_table(columns, cells, names=1), *absent, f"base: {base}"])
