"""Records to words: what runs are called in labels, captions, tables and messages.

Every picture's caption ends with :func:`provenance`, which says what was measured and
on what. Pure text: no drawing, no MXNet.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Sequence

from d2lpar.records.kinds import Header, PointRecord, Run, StepRecord, timed_epochs


def number(value: float) -> str:
    """Three significant digits or all of the whole part, never an exponent.

    >>> number(9.1234), number(6580.4), number(0.0051234)
    ('9.12', '6,580', '0.00512')
    """
    if value == 0 or abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:,.{2 - math.floor(math.log10(abs(value)))}f}"


def plural(n: int, noun: str) -> str:
    """The count and its noun.

    >>> plural(1, "device"), plural(2, "device")
    ('1 device', '2 devices')
    """
    return f"{n} {noun}{'' if n == 1 else 's'}"


def byte_size(size: float) -> str:
    """Bytes in the unit that suits them, with one decimal unless the number is whole.

    >>> byte_size(0), byte_size(512 * 2**10), byte_size(1_610_612_736)
    ('0 B', '512 KiB', '1.5 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:,.1f}".removesuffix(".0") + f" {unit}"


def aligned(rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Rows of cells as text, a line per row; the columns in `right` align there.

    >>> print(aligned([("batch", "3.1 MiB"), ("parameters", "0.8 MiB")], right=[1]))
    batch       3.1 MiB
    parameters  0.8 MiB
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = [[Text(cell) for cell in row] for row in rows]
    table = Table.grid(padding=(0, 2))
    for column in range(max(map(len, rows), default=0)):
        table.add_column(justify="right" if column in right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(file=io.StringIO(), width=10_000, color_system=None)
    console.print(table)
    lines = console.file.getvalue().splitlines()
    return "\n".join(line.rstrip() for line in lines)


def where(run: Run) -> str:
    """How messages name the run: its file, or else its devices."""
    return str(run.path or f"the run, not from a file, on {devices(run.header)}")


def devices(header: Header) -> str:
    """What a run ran on: "2 devices: cpu(0)-cpu(1) (1 thread each of 2 cores)".

    On GPUs: "2 devices: gpu(0)-gpu(1) NVIDIA T4". The CPU's model is left out.
    """
    ids = [label.partition(" ")[0] for label in header.devices]
    # A legend has no room for "cpu(0), cpu(1), ..., cpu(7)".
    numbers = [i[i.find("(") + 1 : -1] for i in ids]
    start = int(numbers[0]) if numbers and numbers[0].isdigit() else -1
    in_a_row = numbers == [str(start + k) for k in range(len(ids))]
    places = f"{ids[0]}-{ids[-1]}" if len(ids) > 1 and in_a_row else ", ".join(ids)
    if header.device_kind == "cpu":
        details = f"({threads(header)} of {plural(header.cores, 'core')})"
    else:
        details = " + ".join(gpu_models(header))
    return f"{plural(header.num_devices, 'device')}: {places} {details}".rstrip()


def threads(header: Header) -> str:
    """Threads of the CPU contexts: "2 threads", "1 thread each"; "" on GPUs."""
    if header.device_kind != "cpu":
        return ""
    if not header.threads_per_device:
        return "threads unset"
    each = " each" if header.num_devices > 1 else ""
    return plural(header.threads_per_device, "thread") + each


def gpu_models(header: Header) -> list[str]:
    """Distinct models of the run's GPUs; [] on CPUs or where the labels name none."""
    if header.device_kind != "gpu":
        return []
    models = (label.partition(" ")[2] for label in header.devices)
    return [model for model in dict.fromkeys(models) if model]


def commit(header: Header) -> str:
    """The code that was run: "commit 1a2b3c4 with local changes"."""
    if not header.git_commit:
        return "commit not recorded"
    return f"commit {header.git_commit[:7]}" + (
        " with local changes" if header.git_dirty else ""
    )


def title(what: str, runs: Sequence[Run]) -> str:
    """A picture's title: what it shows, of which chapter and preset."""
    chapters = dict.fromkeys(run.header.chapter for run in runs)
    presets = dict.fromkeys(run.header.preset for run in runs)
    return f"{what} - {' and '.join(chapters)}, preset {' and '.join(presets)}"


def reading_curves(runs: Sequence[Run]) -> str:
    """The caption's words on accuracy curves."""
    repeats = [len({e.repeat for e in run.epochs}) for run in runs]
    if max(repeats) == 1:
        return "Curves: one training each."
    n = each(runs, lambda run: len({e.repeat for e in run.epochs}))
    return f"Curves: median of {n} repeats; bands: lowest to highest."


def seams(runs: Sequence[Run]) -> list[int]:
    """The epochs after which runs continued from a checkpoint, ascending."""
    epochs = {run.header.settings.get("resumed_at") for run in runs}
    return sorted(epochs - {None})


def reading_seams(runs: Sequence[Run]) -> str:
    """The caption's words on the vertical lines at :func:`seams`, if there are any."""
    return "Vertical line: continued from a checkpoint. " if seams(runs) else ""


def reading_bars(runs: Sequence[Run]) -> str:
    """The caption's words on bars of seconds per epoch."""
    timed = epochs_timed(runs)
    return f"Bars: median; whiskers: quartiles; dots: single epochs. {timed}"


def epochs_timed(runs: Sequence[Run]) -> str:
    """How many epochs were timed, and whether warm-ups are among them."""
    n = each(runs, lambda run: len(timed_epochs(run)))
    if any(e.epoch == 1 for run in runs for e in timed_epochs(run)):
        return f"Epochs timed: {n}; a warm-up counts where there is no other epoch."
    return f"Epochs timed: {n}; the first of every training, a warm-up, is left out."


def provenance(runs: Sequence[Run]) -> str:
    """Hardware, batch policy, data, seed, versions, date and commit of the runs."""
    headers = [run.header for run in runs]
    cpus = " and ".join(dict.fromkeys(h.cpu_model for h in headers))
    cores = each(runs, lambda run: plural(run.header.cores, "core"))
    gpus = ", ".join(dict.fromkeys(m for h in headers for m in gpu_models(h)))
    hardware = f"{gpus}; host {cpus}, {cores}" if gpus else f"{cpus}, {cores}"
    days = sorted({h.date[:10] for h in headers})
    peers = all("mxnet" not in h.versions and "torch" in h.versions for h in headers)
    library = "torch" if peers else "mxnet"
    version = each(runs, lambda run: run.header.versions.get(library, "not recorded"))
    sentences = [
        f"Hardware: {hardware}",
        _thread_policy(runs),
        _batch_policy(runs),
        f"Data: {each(runs, _data)}",
        f"Seed {each(runs, lambda run: run.header.seed)}",
        f"{'PyTorch' if peers else 'MXNet'} {version}",
        f"{' to '.join(dict.fromkeys((days[0], days[-1])))}, "
        f"{each(runs, lambda run: commit(run.header))}",
    ]
    return " ".join(f"{sentence}." for sentence in sentences if sentence)


def each(runs: Sequence[Run], value: Callable[[Run], object]) -> str:
    """The value that all runs share, or that of each in order: "9, 9 and 6"."""
    values = [str(value(run)) for run in runs]
    if len(set(values)) == 1:
        return values[0]
    return f"{', '.join(values[:-1])} and {values[-1]}"


def _thread_policy(runs: Sequence[Run]) -> str:
    headers = [run.header for run in runs]
    if any(h.device_kind != "cpu" or not h.threads_per_device for h in headers):
        return ""
    distinct = {
        (h.num_devices, h.threads_per_device): run for h, run in zip(headers, runs)
    }
    runs = list(distinct.values())  # several methods with the same devices say it once
    n = each(runs, lambda run: run.header.threads_per_device)
    if len({h.threads_per_device for h in headers}) == 1:
        return f"Threads per device: {n}"
    total = each(
        runs, lambda run: run.header.num_devices * run.header.threads_per_device
    )
    return f"Threads per device differ: {n}; on all devices together {total}"


def _batch_policy(runs: Sequence[Run]) -> str:
    """For example "Global batch 256 fixed (strong scaling), lr 0.2"."""
    if any(run.of(PointRecord) or run.of(StepRecord) for run in runs):
        return ""  # a solver has no batch, a scaling study many
    sizes = [run.header.settings.get("global_batch_size") for run in runs]
    counts = [run.header.num_devices for run in runs]
    batch = f"Global batch {each(runs, lambda run: _setting(run, 'global_batch_size'))}"
    if len(set(counts)) > 1 and None not in sizes:
        shares = {size / n for size, n in zip(sizes, counts)}
        if len(set(sizes)) == 1:
            batch += " fixed (strong scaling)"
        elif len(shares) == 1:
            batch += f", {shares.pop():g} per device fixed (weak scaling)"
    return f"{batch}, lr {each(runs, lambda run: _setting(run, 'lr'))}"


def _data(run: Run) -> str:
    settings = run.header.settings
    if "rows" in settings:
        size = f"{settings['rows']:,} rows, {settings['columns']:,} columns"
        return f"{run.header.dataset}, {size}"
    n = settings.get("n_train")
    samples = f"{n:,}" if isinstance(n, int) else "all"
    mark = "SYNTHETIC " if run.header.synthetic else ""
    return f"{mark}{run.header.dataset}, {samples} training samples"


def _setting(run: Run, name: str) -> object:
    return run.header.settings.get(name, "not recorded")
