"""`d2lpar compare`: of two records, or of ours and the peers, timed now (`--peers`).

Both print "table", "json" or "csv" and draw; neither needs MXNet in this process.
"""

from __future__ import annotations

import csv
import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path

import click

from d2lpar import datasets, devices
from d2lpar.figures import bars, compare
from d2lpar.machine import cuda
from d2lpar.machine.gpu_build import tf32
from d2lpar.records import atomic, comparison, files
from d2lpar.records.kinds import ArmAbsent, ArmSample
from d2lpar.records.tables import plain_table
from d2lpar.runs import in_turn, peers
from d2lpar.runs.peers import Place, Recipe, Row

log = logging.getLogger("d2lpar")


def records(a: Path, b: Path, printed: str, out: str | None) -> None:
    """Print the comparison of two records; draw it for "table" or into `out`."""
    runs = files.read(a), files.read(b)
    compared, drawn = comparison.compare(*runs), []
    if out or printed == "table":  # drawn first: if that fails, nothing is printed
        folder = Path(out) if out else b.parent
        drawn = compare.draw(*runs, folder, f"compare-{a.stem}-{b.stem}")
    if printed == "table":
        click.echo(comparison.comparison_table(compared))  # names the differences, too
    else:
        if printed == "json":
            click.echo(json.dumps(asdict(compared), indent=1, default=str))
        else:
            _print_csv(comparison.comparison_rows(compared))
        for difference in compared.differences:
            log.warning("the runs differ also in %s", difference)
    for path in drawn:
        if path.suffix == ".png":  # JSON and CSV are alone on standard output
            click.echo(f"figure: {path}", err=printed != "table")


def ours_and_peers(flags: dict, out: str | None, printed: str, command: str) -> None:
    """Measure, print and draw as `flags` say.

    They are those of :func:`d2lpar.cli.options.peers_options`. The record and the
    pictures are ``<out>/<preset>-<kind><most devices>.*``.
    """
    names, place = peers.names_of(flags["peers"]), _place(flags)
    preset = peers.PRESETS[flags["preset"]]
    custom = any(flags[name] for name in (*preset, "threads"))
    preset = {name: flags[name] or value for name, value in preset.items()}
    recipe = _recipe(flags, preset)
    folder = Path(out or "runs/peers")
    data = datasets.load(**recipe.data)
    recipe.check(data, place.counts)
    atomic.check_writable(folder)
    arms, lines, unchecked = peers.measure(names, recipe, place, preset["rounds"])
    synthetic = data.synthetic
    stem = ("custom" if custom else flags["preset"]) + "-synthetic" * synthetic
    stem += f"-{place.kind}{max(place.counts)}"
    work = f"an epoch of LeNet, {len(data.y_train):,} images, "
    work += f"batch {recipe.global_batch_size}" + " [synthetic data]" * synthetic
    run = in_turn.record(
        folder / f"{stem}.jsonl",
        arms,
        lines,
        work=work,
        command=command,
        **(_gpu_fields(place, lines) if place.kind == "gpu" else {}),
        extra={
            "dataset": data.name,
            "dataset_sha256": data.sha256,
            "synthetic": synthetic,
            "seed": recipe.seed,
            "settings": {**recipe.settings, "threads": place.threads, **data.sizes},
            "first_losses_checked": unchecked is None,
        },
    )
    drawn = bars.draw([run], folder, stem)
    _print_rows(peers.rows(run, place.base_name), printed)
    if unchecked and names:
        log.warning("the peers' losses were not compared with ours: %s", unchecked)
    if printed == "table":
        click.echo(f"record: {run.path}\nfigure: {drawn[0]}")


def _gpu_fields(place: Place, lines: list[ArmSample | ArmAbsent]) -> dict:
    """The header's fields on GPUs: which they are, and what ours say of MXNet on them.

    Each of our arms says it in a line, where it is taken out; the last one has the most
    GPUs. Where none ran, the field is only about the peers.
    """
    gpus = cuda.cuda_devices()
    said = [x.extra.pop("gpu_build") for x in lines if "gpu_build" in x.extra]
    return {
        "on_gpus": [gpus[i].name for i in place.ids],
        "gpu_build": said[-1] if said else {"tf32": tf32(in_turn.exact_float32())},
    }


def _place(flags: dict) -> Place:
    kind, ids = peers.kind_and_ids(flags["devices"])
    counts = flags["num_devices"] or devices.default_counts(len(ids))
    return Place(kind, ids, devices.parse_counts(counts, len(ids)), flags["threads"])


def _recipe(flags: dict, preset: dict) -> Recipe:
    data = {
        "name": datasets.locate(flags["data"], flags["data_dir"]),
        "data_dir": flags["data_dir"],
        "n_train": preset["n_train"],
        "n_test": preset["n_test"],
    }
    how = {name: flags[name] for name in ("global_batch_size", "lr", "seed")}
    return Recipe(data, preset["num_epochs"], **how)


def _print_rows(rows: list[Row], printed: str) -> None:
    if printed == "table":
        click.echo(table(rows))
    elif printed == "json":
        click.echo(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        values = [asdict(row) for row in rows]
        for row in values:  # with its summary's numbers side by side
            row.update(row.pop("seconds") or dict.fromkeys(("median", "q1", "q3", "n")))
        _print_csv(values)


def _print_csv(rows: list[dict]) -> None:
    writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


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
