"""Records to words: what runs are called in labels, captions, tables and messages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from d2lpar.records.kinds import (
    BenchmarkHeader,
    Header,
    PointRecord,
    Run,
    StepRecord,
    timed_epochs,
)


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
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def byte_size(size: float) -> str:
    """Bytes in the unit that suits them, with one decimal unless the number is whole.

    >>> byte_size(0), byte_size(512 * 2**10), byte_size(1_610_612_736)
    ('0 B', '512 KiB', '1.5 GiB')
    """
    power = next((k for k in range(3) if size < 1024 ** (k + 1)), 3)
    number = f"{size / 1024**power:,.1f}".removesuffix(".0")
    return f"{number} {('B', 'KiB', 'MiB', 'GiB')[power]}"


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


def gpu_words(header: Header | BenchmarkHeader) -> list[str]:
    """What changes results and times on GPUs: ["TF32 off", "peer access on"].

    [] on CPUs and for records that do not say.
    """
    facts = header.gpu_build
    if not facts:
        return []
    words = [f"TF32 {'on' if facts.get('tf32') else 'off'}"]
    if facts.get("peer_access") is not None:
        words.append(f"peer access {'on' if facts['peer_access'] else 'off'}")
    return words + ["deterministic"] * bool(facts.get("deterministic"))


def commit(header: Header) -> str:
    """The code that was run: "commit 1a2b3c4 with local changes"."""
    if not header.git_commit:
        return "commit not recorded"
    changes = " with local changes" if header.git_dirty else ""
    return f"commit {header.git_commit[:7]}{changes}"


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
    return f"Curves: median of {each(repeats)} repeats; bands: lowest to highest."


def seams(runs: Sequence[Run]) -> list[int]:
    """The epochs after which runs continued from a checkpoint, ascending."""
    epochs = {run.header.settings.get("resumed_at") for run in runs}
    return sorted(epochs - {None})


def reading_seams(runs: Sequence[Run]) -> str:
    """The caption's words on the vertical lines at :func:`seams`, if there are any."""
    return "Vertical line: continued from a checkpoint. " if seams(runs) else ""


def reading_bars(runs: Sequence[Run]) -> str:
    """The caption's words on bars of seconds per epoch."""
    bars = "Bars: median; whiskers: quartiles; dots: single epochs."
    return f"{bars} {epochs_timed(runs)}"


def epochs_timed(runs: Sequence[Run]) -> str:
    """How many epochs were timed, and whether warm-ups are among them."""
    timed = [timed_epochs(run) for run in runs]
    warm_up = "the first of every training, a warm-up, is left out"
    if any(e.epoch == 1 or e.resumed for epochs in timed for e in epochs):
        warm_up = "a warm-up counts where there is no other epoch"
    return f"Epochs timed: {each(map(len, timed))}; {warm_up}."


def provenance(runs: Sequence[Run]) -> str:
    """Hardware, batch policy, data, seed, versions, date and commit of the runs."""
    headers = [run.header for run in runs]
    cpus = " and ".join(dict.fromkeys(h.cpu_model for h in headers))
    host = f"{cpus}, {each(plural(h.cores, 'core') for h in headers)}"
    gpus = ", ".join(dict.fromkeys(m for h in headers for m in gpu_models(h)))
    days = sorted(h.date[:10] for h in headers)
    peers = all("mxnet" not in h.versions and "torch" in h.versions for h in headers)
    name, library = ("PyTorch", "torch") if peers else ("MXNet", "mxnet")
    return sentences(
        f"Hardware: {f'{gpus}; host {host}' if gpus else host}",
        _thread_policy(headers),
        _batch_policy(runs),
        f"Data: {each(map(_data, headers))}",
        f"Seed {each(h.seed for h in headers)}",
        f"{name} {each(h.versions.get(library, 'not recorded') for h in headers)}",
        ", ".join(dict.fromkeys(w for h in headers for w in gpu_words(h))),
        f"{' to '.join(dict.fromkeys((days[0], days[-1])))}, "
        f"{each(map(commit, headers))}",
    )


def sentences(*parts: str) -> str:
    """The parts that are not empty, each with a full stop."""
    return " ".join(f"{part}." for part in parts if part)


def each(values: Iterable[object]) -> str:
    """The value if all are equal, or else each in order: "9, 9 and 6"."""
    texts = [str(value) for value in values]
    if len(set(texts)) == 1:
        return texts[0]
    return f"{', '.join(texts[:-1])} and {texts[-1]}"


def _thread_policy(headers: Sequence[Header]) -> str:
    if any(h.device_kind != "cpu" or not h.threads_per_device for h in headers):
        return ""
    # Several methods on the same devices say it once.
    pairs = dict.fromkeys((h.num_devices, h.threads_per_device) for h in headers)
    threads = [per_device for _, per_device in pairs]
    if len(set(threads)) == 1:
        return f"Threads per device: {threads[0]}"
    total = each(map(math.prod, pairs))
    return (
        f"Threads per device differ: {each(threads)}; on all devices together {total}"
    )


def _batch_policy(runs: Sequence[Run]) -> str:
    """For example "Global batch 256 fixed (strong scaling), lr 0.2"."""
    if any(run.of(PointRecord, StepRecord) for run in runs):
        return ""  # a solver has no batch, a scaling study many
    sizes, rates = (
        [run.header.settings.get(name, "not recorded") for run in runs]
        for name in ("global_batch_size", "lr")
    )
    counts, scaling = [run.header.num_devices for run in runs], ""
    if len(set(counts)) > 1 and "not recorded" not in sizes:
        shares = {size / n for size, n in zip(sizes, counts)}
        if len(set(sizes)) == 1:
            scaling = " fixed (strong scaling)"
        elif len(shares) == 1:
            scaling = f", {shares.pop():g} per device fixed (weak scaling)"
    return f"Global batch {each(sizes)}{scaling}, lr {each(rates)}"


def _data(header: Header) -> str:
    settings = header.settings
    if {"rows", "columns"} <= settings.keys():
        size = f"{settings['rows']:,} rows, {settings['columns']:,} columns"
        return f"{header.dataset}, {size}"
    n = settings.get("n_train")
    samples = f"{n:,}" if isinstance(n, int) else "all"
    mark = "SYNTHETIC " * header.synthetic
    return f"{mark}{header.dataset}, {samples} training samples"


def noun(header: Header) -> str:
    """What a device is called: "context" on CPUs, else "GPU"."""
    return "context" if header.device_kind == "cpu" else "GPU"


def subtitle(what: str, runs: Sequence[Run]) -> str:
    """What a picture's subtitle says: the workload, and the hardware."""
    headers = [run.header for run in runs]
    return " \u00b7 ".join(filter(None, (what, hardware(headers))))


def hardware(headers: Sequence[Header | BenchmarkHeader]) -> str:
    """The machine in a few words: "AMD EPYC, 2 cores", or the GPUs."""
    if all(isinstance(h, Header) and h.device_kind == "gpu" for h in headers):
        gpus = list(dict.fromkeys(m for h in headers for m in gpu_models(h)))
        return ", ".join([*gpus, *gpu_words(headers[0])[:1]])
    cpus = " and ".join(dict.fromkeys(h.cpu_model for h in headers))
    return f"{cpus}, {each(plural(h.cores, 'core') for h in headers)}"


def data_name(header: Header) -> str:
    """The data set in a few words, with a mark where it was generated in its place."""
    name = {"fashion-mnist": "Fashion-MNIST", "cryptopunks": "CryptoPunks"}
    mark = "SYNTHETIC " * header.synthetic
    return mark + name.get(header.dataset, header.dataset)


def stamp(headers: Sequence[Header | BenchmarkHeader]) -> str:
    """When and with what it was measured, for a caption's end."""
    version = next((h.versions["mxnet"] for h in headers if "mxnet" in h.versions), "")
    days = sorted(h.date[:10] for h in headers)
    commits = dict.fromkeys(map(commit, headers))
    return sentences(
        f"MXNet {version}" if version and version != "not installed" else "",
        f"{' to '.join(dict.fromkeys((days[0], days[-1])))}, {' and '.join(commits)}",
    )


def times(ratio: float) -> str:
    """A ratio in words: "1.91 times as fast", or "1.60 times as slow".

    >>> times(1.914), times(0.5)
    ('1.91 times as fast', '2.00 times as slow')
    """
    if ratio >= 1:
        return f"{number(ratio)} times as fast"
    return f"{number(1 / ratio)} times as slow"
