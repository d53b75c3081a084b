"""TODO: one idea."""

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
from d2lpar.runs import in_turn
from d2lpar.runs.peers import PRESETS, Job, Row, chosen, measure, names_of

log = logging.getLogger("d2lpar")


def compare(flags: dict, out: str | None, printed: str, command: str) -> None:
    """`d2lpar compare --peers`: measure, print "table", "json" or "csv", and draw.

    `flags` are those of :func:`d2lpar.cli.options.peers_options`. The record and the
    pictures are ``<out>/<preset>-<kind><most devices>.*``.
    """
    peers = names_of(flags["peers"])
    kind, ids = chosen(flags["devices"])
    counts = devices.parse_counts(
        flags["num_devices"] or devices.default_counts(len(ids)), len(ids)
    )
    preset = {k: flags.get(k) or v for k, v in PRESETS[flags["preset"]].items()}
    own = any(flags.get(k) for k in PRESETS[flags["preset"]]) or flags["threads"]
    folder = Path(out or "figures/peers")
    atomic.check_writable(folder)
    name = datasets.locate(flags["data"], flags["data_dir"])
    data = {"name": name, "data_dir": flags["data_dir"]}
    data.update(n_train=preset["n_train"], n_test=preset["n_test"])
    recipe = {k: flags[k] for k in ("global_batch_size", "lr", "seed")}
    job = Job(data, preset["num_epochs"], **recipe)
    loaded = datasets.load(**data)
    job.check(loaded, counts)

    found = measure(peers, kind, ids, counts, job, preset["rounds"], flags["threads"])
    rows, lines, seconds, unchecked = found
    work = f"an epoch of LeNet, {len(loaded.y_train):,} images, "
    work += f"batch {job.global_batch_size}" + " [synthetic data]" * loaded.synthetic
    stem = "custom" if own else flags["preset"]
    stem += "-synthetic" * loaded.synthetic + f"-{kind}{max(counts)}"
    gpus = cuda.cuda_devices()
    header = {
        **in_turn.header(stem, work, command),
        "on_gpus": [gpus[i].name for i in ids] if kind == "gpu" else [],
        "dataset": loaded.name,
        "dataset_sha256": loaded.sha256,
        "synthetic": loaded.synthetic,
        "seed": job.seed,
        "settings": {**job.settings, "threads": flags["threads"], **loaded.sizes},
        "first_losses_checked": unchecked is None,
    }
    header["settings"].pop("data")
    in_turn.write(header, lines, folder)
    is_peer = {row.name: row.is_peer for row in rows}
    drawn = bars.draw(header, is_peer, lines, seconds, folder)
    if printed == "table":
        print(table(rows))
    elif printed == "json":
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        writer = csv.DictWriter(sys.stdout, list(as_csv(rows[0])), lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(as_csv, rows))
    if unchecked and peers:
        log.warning("the peers' losses were not held to ours: %s", unchecked)
    if printed == "table":
        print(f"record: {folder / stem}.jsonl\nfigure: {drawn[0]}")


def as_csv(row: Row) -> dict:
    """A row with its summary's numbers side by side."""
    values = asdict(row)
    s = values.pop("seconds") or dict.fromkeys(("median", "q1", "q3", "n"))
    return {**values, **s}


def table(rows: list[Row]) -> str:
    """A line a row; times as parts of the base's, which is the row with 1.00."""
    width = max(len(row.name) for row in rows)
    head = f"{'':{width}}  {'sec/epoch (quartiles, n)':28} {'samples/s':>10}"
    base = next(row.name for row in rows if row.of_base == 1)
    lines = [f"{head} {'accuracy':>9} {'of base':>8}"]
    for row in rows:
        if row.seconds is None:
            lines.append(f"{row.name:{width}}  not measured: {row.why}")
            continue
        s = row.seconds
        text = f"{s.median:.3g} ({s.q1:.3g}-{s.q3:.3g}, n={s.n})"
        lines.append(
            f"{row.name:{width}}  {text:28} {row.samples_per_sec:10,.0f} "
            f"{row.test_acc:9.3f} {row.of_base:8.2f}"
        )
    return "\n".join([*lines, f"base: {base}"])
