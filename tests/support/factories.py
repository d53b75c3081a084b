"""Headers, lines and runs as records hold them, for tests."""

from pathlib import Path

from d2lpar.records.kinds import (
    BenchmarkHeader,
    EpochRecord,
    GanEpochRecord,
    Header,
    PointRecord,
    Run,
)


def header(num_devices=1, **fields):
    """A header of a training on CPU contexts."""
    values = {
        "chapter": "multiple_gpus",
        "preset": "book",
        "num_devices": num_devices,
        "device_kind": "cpu",
        "devices": [f"cpu({i}) (1 thread of 2 cores)" for i in range(num_devices)],
        "threads_per_device": None if fields.get("device_kind") == "gpu" else 1,
        "cores": 2,
        "cpu_model": "Some CPU",
        "dataset": "fashion-mnist",
        "dataset_sha256": "a" * 64,
        "synthetic": False,
        "seed": 0,
        "settings": {"global_batch_size": 256, "lr": 0.2, "num_epochs": 4},
        "command": "d2lpar run multiple_gpus",
        "versions": {"mxnet": "1.9.1"},
        "git_commit": "0123456789abcdef",
        "git_dirty": False,
        "date": "2026-01-02T03:04:05+00:00",
    }
    return Header(**{**values, **fields})


def benchmark_header(**fields):
    return BenchmarkHeader(
        benchmark="layers",
        work="a layer",
        command="python benchmarks/layers.py",
        cpu_model="Some CPU",
        cores=2,
        versions={"mxnet": "1.9.1"},
        git_commit=None,
        git_dirty=None,
        date="2026-01-02T03:04:05+00:00",
        **fields,
    )


def epoch(number, seconds=2.0, repeat=0, **fields):
    values = {"train_loss": 1 / number, "test_acc": min(1.0, 0.2 * number)}
    return EpochRecord(
        epoch=number,
        seconds=seconds,
        samples_per_sec=60_000 / seconds,
        repeat=repeat,
        **{**values, **fields},
    )


def gan_epoch(number, seconds=2.0, repeat=0, **fields):
    values = {"d_loss": 0.6, "g_loss": 0.8}
    return GanEpochRecord(
        epoch=number,
        seconds=seconds,
        samples_per_sec=2_500 / seconds,
        repeat=repeat,
        **{**values, **fields},
    )


def point(iteration, num_devices=1, **fields):
    values = {"seconds": 0.1 * iteration, "residual_norm": 30.0 / iteration}
    return PointRecord(
        iteration=iteration,
        device_residual_norms=[1.0] * num_devices,
        **{**values, **fields},
    )


def training(num_devices=1, seconds=(9.0, 2.0, 1.8, 2.2), repeats=1, **fields):
    """A run whose epochs took `seconds`; the first of each repeat is a warm-up."""
    lines = [
        epoch(k, s, repeat)
        for repeat in range(repeats)
        for k, s in enumerate(seconds, 1)
    ]
    path = Path(f"runs/book-cpu{num_devices}.jsonl")
    return Run(header(num_devices, **fields), tuple(lines), path)
