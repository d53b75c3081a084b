"""Words for runs, in tables and pictures: hardware, data, devices, commit and date."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from d2lpar.records.kinds import BenchmarkHeader, Header, Run
from d2lpar.records.result import listed
from d2lpar.text import plural

DATA_NAMES = {
    "fashion-mnist": "Fashion-MNIST",
    "fashion-mnist-sample": "Fashion-MNIST (sample)",
    "cryptopunks": "CryptoPunks",
    "synthetic-punks": "drawn faces",
}

CHAPTERS = {
    "multiple_gpus": "from scratch",
    "multiple_gpus_concise": "in Gluon",
    "multiple_machines": "several machines",
    "gan": "GAN",
}


def gpu_words(header: Header | BenchmarkHeader) -> list[str]:
    """Return the GPU settings that change results, if known: ["TF32 off"]."""
    facts, names = header.gpu_build, {"tf32": "TF32", "peer_access": "peer access"}
    known = {key: name for key, name in names.items() if facts.get(key) is not None}
    return [f"{name} {'on' if facts[key] else 'off'}" for key, name in known.items()]


def commit(header: Header | BenchmarkHeader) -> str:
    """Return the code that was run: "commit 1a2b3c4 with local changes"."""
    if not header.git_commit:
        return "commit not recorded"
    changes = " with local changes" if header.git_dirty else ""
    return f"commit {header.git_commit[:7]}{changes}"


def data_name(header: Header) -> str:
    """Return the data set in a few words, with a mark where it was generated."""
    mark = "SYNTHETIC " if header.synthetic else ""
    return DATA_NAMES.get(header.dataset, f"{mark}{header.dataset}")


def hardware(headers: Sequence[Header | BenchmarkHeader]) -> str:
    """Return the machine in a few words: "AMD EPYC, 2 cores", or the GPUs."""
    on_gpus = [h for h in headers if isinstance(h, Header) and h.device_kind == "gpu"]
    if len(on_gpus) == len(headers):
        models = (label.partition(" ")[2] for h in on_gpus for label in h.devices)
        gpus = filter(None, dict.fromkeys(models))
        return ", ".join([*gpus, *gpu_words(headers[0])[:1]])
    return " and ".join(
        dict.fromkeys(f"{h.cpu_model}, {plural(h.cores, 'core')}" for h in headers)
    )


def count(header: Header) -> str:
    """Return "2 devices", or "2 devices of 2 workers (sync)"."""
    words = plural(header.num_devices, "device")
    if header.workers > 1:
        words += f" of {header.workers} workers ({header.variant or 'sync'})"
    return words


def counts(headers: Sequence[Header]) -> str:
    """Return on how many devices runs were measured: "1 and 2 devices"."""
    of_each = (h.settings.get("device_counts") or [h.num_devices] for h in headers)
    found = sorted({n for counts in of_each for n in counts})
    return f"{listed(map(str, found))} device{'s' * (found != [1])}"


def configuration(header: Header) -> str:
    """Return the devices and what they are: "2 devices (1 thread each)"."""
    if header.threads_per_device is None:
        return f"{count(header)} (GPU)"
    each = " each" if header.num_devices > 1 else ""
    return f"{count(header)} ({plural(header.threads_per_device, 'thread')}{each})"


def subtitle(words: str, runs: Sequence[Run]) -> str:
    """Return the line below a picture: the workload, and the hardware."""
    machine = hardware([run.header for run in runs])
    return " \u00b7 ".join(filter(None, (words, machine)))


def machine(header: BenchmarkHeader) -> str:
    """Return where a benchmark ran: the GPUs that it used, or else the CPU."""
    if not header.on_gpus:
        return hardware([header])
    return ", ".join([*dict.fromkeys(header.on_gpus), *gpu_words(header)])


def period(headers: Sequence[Header | BenchmarkHeader]) -> str:
    """Return the days of runs: "2026-01-02", or "2026-01-02 to 2026-01-05"."""
    days = sorted(header.date[:10] for header in headers)
    return " to ".join(dict.fromkeys((days[0], days[-1])))


def stamp(headers: Sequence[Header | BenchmarkHeader]) -> str:
    """Return MXNet's version, dates and commits of runs, for a file's metadata."""
    version = next((h.versions["mxnet"] for h in headers if "mxnet" in h.versions), "")
    library = f"MXNet {version}. " if version not in ("", "not installed") else ""
    commits = " and ".join(dict.fromkeys(map(commit, headers)))
    return f"{library}{period(headers)}, {commits}."


def source(runs: Sequence[Run]) -> str:
    """Return the last paragraph of a text: hardware, version, dates and commits."""
    headers = [run.header for run in runs]
    return textwrap.fill(f"{hardware(headers)}. {stamp(headers)}", 88)
