"""Sentences of the lessons that rest on committed records, which cells do not check."""

import re
from collections import Counter
from pathlib import Path
from statistics import median

import pytest

from d2lpar import chapter
from d2lpar.low_precision.result import seconds
from d2lpar.memory import estimate
from d2lpar.records import files
from d2lpar.records.comparison import (
    arm_times,
    compare,
    ratio_interval,
    seconds_per_epoch,
)
from d2lpar.records.kinds import (
    ArmSample,
    FrameRecord,
    PointRecord,
    PrecisionRecord,
    group,
    timed_epochs,
)
from d2lpar.scaling.model import studies
from d2lpar.scaling.result import pays_from, speedups

CHAPTERS = Path(__file__).parents[2] / "chapters"
FIGURES = CHAPTERS.parent / "figures"
if not FIGURES.is_dir():
    pytest.skip("not a checkout", allow_module_level=True)


def record_of_a_gpu(name):
    """What a lesson reads of this name: a record of an H100, or of an H200."""
    folders = ("gpus", "h200")
    folder = next(f for f in folders if (FIGURES / f / name).is_file())
    return chapter.record(f"{folder}/{name}")


def gpus_of(name):
    """The folder of the records of GPUs that a lesson names once."""
    text = (CHAPTERS / f"{name}.py").read_text(encoding="utf-8")
    return re.search(r'^GPUS = "(\w+)"', text, re.MULTILINE)[1]


@pytest.fixture(scope="module")
def studied():
    """The four studies of chapter 6, by where and how they ran."""
    paths = {
        ("cores", "concise"): "scaling/book-1thread-concise-cpu2.jsonl",
        ("cores", "scratch"): "scaling/book-1thread-scratch-cpu2.jsonl",
    }
    for how in ("concise", "scratch"):
        path = f"{gpus_of('scaling')}/scaling/book-1thread-{how}-gpu2.jsonl"
        paths["GPUs", how] = path
    return {key: studies([chapter.record(path)])[0] for key, path in paths.items()}


def places(study):
    found = Counter()
    for batch, (low, high) in study.bracket(2).items():
        if batch in study.batches:
            took = study.steps[2, batch]
            place = "below" if took < low else "above" if took > high else "inside"
            found[place] += 1
    return found


def test_from_which_batch_a_second_device_pays(studied):
    """Chapter 6: cores from 64 images on in Gluon, GPUs from 2,048."""
    assert pays_from(speedups(studied["cores", "concise"], 2)) == 64
    assert pays_from(speedups(studied["GPUs", "concise"], 2)) == 2_048
    assert speedups(studied["GPUs", "scratch"], 2)[256] < 1


def test_from_scratch_the_second_gpu_costs_time():
    """Chapter 6, in its table of equal forms."""
    found = chapter.table(f"{gpus_of('scaling')}/peers/custom-gpu2.jsonl")
    one, two = (found["d2lpar from scratch"][n] for n in (1, 2))
    assert one.is_below(two)


def test_the_bracket_is_safe_on_gpus_and_no_bound_on_cores(studied):
    for how in ("concise", "scratch"):
        assert not places(studied["GPUs", how])["above"]
    assert set(places(studied["cores", "concise"])) == {"above"}
    assert {"above", "below"} < set(places(studied["cores", "scratch"]))


def test_python_needs_twice_the_time_for_two_gpus(studied):
    python = {1: [], 2: []}
    for (n, _), steps in studied["GPUs", "concise"].records.items():
        python[n] += [seconds for step in steps for seconds in step.issue_seconds]
    assert 1.7 < median(python[2]) / median(python[1]) < 2.3


def test_more_gpus_do_not_reduce_what_is_no_arithmetic():
    """Chapter 6's DDP: its time grows with the batch below 1,024 images by no fifth."""
    names = [f"gpu_scaling/book-ddp-gpu{n}.jsonl" for n in (1, 2, 4)]
    (ddp,) = studies([chapter.record(name) for name in names])
    small = [s for (n, batch), s in ddp.steps.items() if n == 1 and batch <= 1_024]
    assert max(small) < 1.2 * min(small)


def test_the_network_makes_the_second_gpu_pay():
    """Chapter 5: ResNet-18 with 256 images is faster, LeNet is not; then the batch."""
    folder = gpus_of("multiple_gpus_concise")
    names = [f"{folder}/peers/custom-gpu2.jsonl", f"{folder}/benchmarks/resnet18.jsonl"]
    found = chapter.table(*names)
    small, larger = found["batch 256, lr 0.1"], found["batch 512, lr 0.2"]
    assert small[2].is_below(small[1])
    lenet = found["d2lpar concise"]
    assert not lenet[2].is_below(lenet[1])
    by_network = small[1].median / small[2].median
    assert 1 < small[2].median / larger[2].median < by_network


def test_rare_averages_lose_accuracy_with_momentum_on_both_sides():
    """Chapter 7: without momentum less than 5 %, with it the interval is below 1."""
    lines = chapter.record("benchmarks/local_sgd.jsonl").lines_of(ArmSample)
    ways = group([line for line in lines if line.epoch == 3], lambda line: line.arm)
    accs = {way: [line.test_acc for line in ends] for way, ends in ways.items()}
    sent = {way: ends[0].wire_bytes for way, ends in ways.items()}
    assert max(sent.values()) == 200 * min(sent.values())
    for way in ("every 4 steps", "every 16 steps", "every 64 steps", "every epoch"):
        _, low, high = ratio_interval(accs[way], accs["every step"])
        assert 0.95 < low < 1 < high
    always = accs["every step, outer momentum"]
    assert ratio_interval(accs["every epoch, outer momentum"], always)[2] < 1
    assert ratio_interval(always, accs["every step"])[1] > 1  # it helps there, too


def test_the_published_faults_explain_the_published_errors():
    """Chapter 8: as published to a tenth, and better than mended."""
    errors, least = {}, {}
    for sample in chapter.record("benchmarks/least_squares.jsonl").lines_of(ArmSample):
        if sample.error is not None:
            best = least.get(sample.work, sample.error)
            least[sample.work] = min(sample.error, best)
            errors[sample.work, sample.arm.split(",")[0]] = sample.error
    for work, ratio in (
        ("10,000 x 1,000", 28.81 / 27.35),
        ("100,000 x 1,000", 124.77 / 90.83),
    ):
        published = errors[work, "averaging as published"] / least[work]
        mended = errors[work, "averaging"] / least[work]
        assert published < mended
        assert abs(ratio - published) < abs(ratio - mended) / 10


def test_a_process_never_held_a_sixth_of_the_matrix():
    """Chapter 9."""
    run = chapter.record("least_squares_large/book-cgls-cpu2.jsonl")
    peaks = [point.peak_resident_mb for point in run.lines_of(PointRecord)]
    assert max(peaks) < 8_000 / 6


def test_wide_networks_cover_more_than_the_notebooks_and_with_spectral_norms():
    """Chapter 10: at most 3,000 and 10,000 steps."""
    folder = "h200/gan", "h200/seeds/gan", "gpus/gan"
    coverages, steps = {}, {}
    for path in (path for name in folder for path in (FIGURES / name).glob("*.jsonl")):
        run = files.read(path)
        settings = run.header.settings
        if run.header.num_devices > 1:
            continue
        name = settings["d_norm"] if settings["width"] else "notebook"
        for most in (3_000, 10_000):
            frames = [f for f in run.lines_of(FrameRecord) if f.num_steps <= most]
            if frames[-1].num_steps >= 0.85 * most:
                steps.setdefault((bool(settings["width"]), most), set())
                steps[bool(settings["width"]), most].add(frames[-1].num_steps)
                coverages.setdefault((name, most), []).append(frames[-1].coverage)
        if name == "notebook":
            assert len(run.epochs) == 4_000 == settings["num_epochs"]
    assert len(steps[True, 3_000]) == len(steps[True, 10_000]) == 1  # the same step
    assert min(coverages["spectral", 3_000]) > max(coverages["notebook", 3_000])
    assert max(coverages["none", 10_000]) < min(coverages["spectral", 10_000])


def test_synchronised_batch_norm_costs_more_than_equal_runs_differ():
    """Chapter 10."""
    found = chapter.table("h200/benchmarks/gan-wide.jsonl", unit="ms")
    local, synchronised = found["gan-wide"][2], found["synchronised BatchNorm"][2]
    assert local.is_below(synchronised)
    assert not found["gan-wide"][2].is_below(found["gan-wide"][1])  # no speedup


def test_an_estimate_of_memory_is_a_bound_on_cores():
    """Chapter 11: large batches on two contexts needed a third less."""
    ratios = {}
    name = "benchmarks/memory.jsonl"
    for run, kind in ((chapter.record(name), "cpu"), (record_of_a_gpu(name), "gpu")):
        sizes = {"n_train": run.header.settings["n_train"], "n_test": 200}
        for arm in arm_times(run):
            n, batch = int(arm.name.split()[0]), arm.samples[0].batch_size
            peak = median(sample.peak_bytes for sample in arm.samples)
            need = estimate.lenet_need(batch, n, **sizes, kind=kind)
            ratios[kind, arm.name, batch] = peak / max(need.by_memory)
    on_cores = [ratio for key, ratio in ratios.items() if key[0] == "cpu"]
    assert 0.6 < min(on_cores) < 0.7 and max(on_cores) < 1
    assert all(0.9 < r < 1.15 for key, r in ratios.items() if key[0] == "gpu")


def test_what_an_outlier_costs_in_low_precision():
    """Chapter 12: tenths of a point without it, ten with it, and per channel none."""
    rows = chapter.record("low_precision/book-1thread-cpu1.jsonl")
    book = {
        (row.weights, row.precision): row
        for row in rows.lines_of(PrecisionRecord)
        if row.supported
    }
    float32 = book["trained", "float32"].test_acc
    lost = {key: 100 * (float32 - row.test_acc) for key, row in book.items()}
    chance = {key: 2 * (1e4 * (1 - row.agreement)) ** 0.5 / 100
              for key, row in book.items()}  # fmt: skip
    mild = [
        (weights, precision)
        for weights, precision in lost
        if precision in ("int8-naive", "int8-entropy") and weights != "stretched"
    ]
    assert len(mild) == 4
    assert all(0 < lost[key] < 0.3 and lost[key] < 1.5 * chance[key] for key in mild)
    assert sum(lost[key] > chance[key] for key in mild) == 2
    assert all(lost[key] < chance[key] for key in lost if "channels" in key[1])
    naive, entropy = (lost["stretched", f"int8-{how}"] for how in ("naive", "entropy"))
    assert naive > 10 and 0.4 < entropy / naive < 0.6
    assert lost["stretched", "int8-none"] > 30
    fast, slow = (seconds(book["trained", f"int8-{how}"]) for how in ("naive", "none"))
    assert compare(slow, fast).is_told and compare(slow, fast).ratio > 2


def test_kernels_on_a_core_and_on_a_gpu():
    """Chapter 13: nearly a loop in C; on the GPU it cannot be told."""
    core, gpu = "1 context, 1 thread", "1 GPU"
    found = {}
    name = "benchmarks/kernels.jsonl"
    for run, on in ((chapter.record(name), core), (record_of_a_gpu(name), gpu)):
        for arm in arm_times(run):
            found[on, arm.work, arm.name] = arm.summary
    for work in ("y = 2 x", "p -= step * grad"):
        kernel = found[core, work, f"kernel, {core}"]
        assert kernel.is_below(found[core, work, f"MXNet, {core}"])
        assert kernel.median < 1.2 * found[core, work, f"loop in C, {core}"].median
        kernel, theirs = (
            found[gpu, work, f"{who}, {gpu}"] for who in ("kernel", "MXNet")
        )
        assert theirs.least < kernel.most and kernel.least < theirs.most
    update = [
        found[gpu, "p -= step * grad", f"{who}, {gpu}"].median
        for who in ("MXNet", "kernel")
    ]
    assert 5 / update[0] > 1.5 * 3 / update[1]  # bytes per second


def test_what_two_workers_send_and_save():
    """Chapter 14: two bits send half, and only not waiting is faster."""
    ways = {"dist_sync": "", "2 bits": "-2bit", "dist_async": "-async"}
    sent, times = {}, {}
    for way, suffix in ways.items():
        names = [f"book{s}-2workers{suffix}-cpu2" for s in ("", "-seed1", "-seed2")]
        runs = [chapter.record(f"multiple_machines/{name}.jsonl") for name in names]
        bytes_sent = [epoch.wire_bytes for run in runs for epoch in timed_epochs(run)]
        sent[way], times[way] = median(bytes_sent), seconds_per_epoch(*runs)
    per_epoch = 235 * 2 * 2 * 4 * 129_068  # steps x workers x (push and pull)
    assert abs(sent["dist_sync"] / per_epoch - 1) < 0.01
    assert 0.5 < sent["2 bits"] / sent["dist_sync"] < 0.6
    assert not compare(times["dist_sync"], times["2 bits"]).is_told
    assert times["2 bits"].median > times["dist_sync"].median
    assert times["dist_async"].is_below(times["dist_sync"])
