"""One step as a timeline: measured, and predicted by a scheduler.

    python tools/step_schedule.py

Prints how far the prediction misses what was measured. The book's step player shows the
predictions that :func:`predictions` writes into its page. All times are microseconds. A
span is (name, lane, start, end) of one operator; lane 0 is Python, lane k + 1 is
device k.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from statistics import fmean, median

from d2lpar.records import files
from d2lpar.scaling.model import all_reduces, studies

ROOT = Path(__file__).parents[1]
TRACE = ROOT / "figures" / "scaling" / "one-step-trace.json"
RECORD = ROOT / "figures" / "scaling" / "book-1thread-scratch-cpu2.jsonl"
BATCHES = 16, 512  # of the trace, on two devices
WAYS = ("one all-reduce per array", "one bucket", "overlapped")
# What the player offers to predict.
COUNTS = range(1, 9)  # of devices
PREDICTED_BATCHES = 16, 64, 256, 512, 2048, 8192
COMMUNICATION = re.compile("Copy|Sum|KVStore|_npi_add$")  # in GPU traces, too
LAYERS = {  # of LeNet, and the bytes of their weights and biases
    "conv 1": [4 * 20 * 9, 4 * 20],
    "conv 2": [4 * 50 * 20 * 25, 4 * 50],
    "dense 1": [4 * 800 * 128, 4 * 128],
    "dense 2": [4 * 128 * 10, 4 * 10],
}
IMAGE = 4 * 28 * 28 + 4  # bytes, with its label
# Which layer the n-th operator of a name belongs to, in the forward pass of a device.
FORWARD = {
    "Convolution": (0, 1),
    "Activation": (0, 1, 2),
    "Pooling": (0, 1),
    "_np_reshape": (2,),
    "_np_transpose": (2, 3),
    "FullyConnected": (2, 3),
}


def spans_of(batch: int, trace: Path = TRACE) -> list[tuple]:
    """The spans of a step in a trace that chapter 6 has written."""
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    return [
        (e["name"], e["tid"], e["ts"], e["ts"] + e["dur"])
        for e in events
        if e["pid"] == batch
    ]


def constants(trace: Path = TRACE, record: Path = RECORD) -> dict:
    """What the scheduler knows: durations from the trace, the link from the record.

    A layer's time is a line through the trace's two batches, mean of both devices.
    MXNet joins the backward pass to one operator, which is shared out to the layers
    like their forward passes: traced operator by operator (with
    MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN=1) no layer's share was off by more than 3 % of
    the pass. Python's pace is that of the small batch: a
    forward and a backward pass take it as long as the two devices begin theirs apart,
    and the rest of its time is shared out equally. A copy or a sum has the median time
    of the trace's, most of which are of small arrays, and a third of the time per byte
    of the record's all-reduce on two devices, which is two copies and a sum.
    """
    forward, backward, update, sent = [], [], [], []
    for batch in BATCHES:
        times, seen = Counter(), Counter()
        for name, lane, start, end in spans_of(batch, trace):
            if COMMUNICATION.match(name):
                sent.append(end - start)
            elif name in FORWARD:
                times[FORWARD[name][seen[name, lane]]] += (end - start) / 2
                seen[name, lane] += 1
            elif name in ("_npi_multiply_scalar", "_npi_subtract"):
                times["update"] += (end - start) / 2
            elif lane > 0:
                times["backward"] += (end - start) / 2
        forward.append([times[layer] for layer in range(len(LAYERS))])
        backward.append([times["backward"] * t / sum(forward[-1]) for t in forward[-1]])
        update.append(times["update"])
    (few, many), lines = (b / 2 for b in BATCHES), []
    for small, large in [*zip(*forward), *zip(*backward)]:
        slope = max(0, large - small) / (many - few)
        fixed = max(0, small - slope * few)
        lines.append([fixed, (large - fixed) / many])
    by_bytes = {
        size: 1e6 * median(by_variant["book"])
        for (n, arrays, size), by_variant in all_reduces([files.read(record)]).items()
        if (n, arrays) == (2, 1)
    }
    least, whole = min(by_bytes), sum(map(sum, LAYERS.values()))
    found = {
        "layers": [
            [name, arrays, lines[k], lines[k + len(LAYERS)]]
            for k, (name, arrays) in enumerate(LAYERS.items())
        ],
        "image": IMAGE,
        "update": fmean(update) / whole,  # per byte
        "latency": median(sent),
        "per_byte": (by_bytes[whole] - by_bytes[least]) / (whole - least) / 3,
        "issue": dict.fromkeys(("forward", "backward", "other"), 0.0),  # per operator
    }
    steps = Counter(s[0].split(",")[0] for s in schedule(found, 2, BATCHES[0], WAYS[0]))
    spans = spans_of(BATCHES[0], trace)
    spent = {
        "forward": apart(s for s in reversed(spans) if s[0] == "Convolution"),
        "backward": apart(sorted(spans, key=lambda s: s[3] - s[2])),
    }
    rest = max(end for _, lane, _, end in spans if lane == 0) - 2 * sum(spent.values())
    found["issue"] = {name: 2 * time / steps[name] for name, time in spent.items()}
    others = sum(steps.values()) - 1 - steps["forward"] - steps["backward"]
    return {**found, "issue": {**found["issue"], "other": rest / others}}


def apart(spans) -> float:
    """Between the beginnings of the last span of each of the two devices."""
    starts = {lane: start for _, lane, start, _ in spans if lane > 0}
    return starts[2] - starts[1]


def schedule(c: dict, n: int, batch: int, way: str) -> list[tuple]:
    """The spans of a step of `batch` images on `n` devices, in the order of issue.

    Python issues one operator after the other. A device computes one at a time: of
    those whose inputs are there, the one that has waited longest. The gradients are
    summed on device 0, when a device's backward pass has ended; "overlapped", each
    layer's when they are there, and copies and sums run beside the device's computing.
    """
    ops, python = [], 0.0

    def issue(name: str, lane: int, time: float, inputs: list, queue: int = 0) -> int:
        nonlocal python
        python += c["issue"].get(name.split(",")[0], c["issue"]["other"])
        ops.append((name, lane, time, inputs, queue or lane, python))
        return len(ops) - 1

    def link(num_bytes: int) -> float:
        return c["latency"] + c["per_byte"] * num_bytes

    images = [batch // n + (k < batch % n) for k in range(n)]
    last = [
        [issue("Copy images", 1, link(c["image"] * images[k]), [])] if k else []
        for k in range(n)
    ]
    layers = c["layers"]
    upwards = range(len(layers))
    ready = [[[]] * n for _ in layers]  # a layer's gradients on each device
    for name, column, order in (
        ("forward", 2, upwards),
        ("backward", 3, upwards[::-1]),
    ):
        for k in range(n):
            for i in order:
                fixed, per_image = layers[i][column]
                time = fixed + per_image * images[k]
                last[k] = [issue(f"{name}, {layers[i][0]}", k + 1, time, last[k])]
                ready[i][k] = last[k]
    sizes = [size for _, arrays, _, _ in layers for size in arrays]
    if way == "one bucket":
        groups = [(sum(sizes), last)]
    elif way == "overlapped":
        groups = [(sum(layers[i][1]), ready[i]) for i in upwards[::-1]]
    else:
        groups = [(size, last) for size in sizes]
    own = n if way == "overlapped" else 0  # queues of their own for communication
    summed = []
    for size, inputs in groups:
        total = inputs[0]
        for k in range(1, n):
            queue = own + k + 1
            to = issue("Copy to device 0", k + 1, link(size), inputs[k], queue)
            total = [issue("Sum", 1, link(size), [*total, to], own + 1)]
        name = "Copy from device 0"
        back = [[issue(name, 1, link(size), total, own + 1)] for _ in range(1, n)]
        summed.append([total, *back])
    for k in range(n):
        for (size, _), arrived in zip(groups, summed):
            issue("update", k + 1, c["update"] * size, arrived[k])

    free, ends = [0.0] * (2 * n + 1), {}
    spans = [("Python", 0, 0.0, python), *ops]
    while len(ends) < len(ops):
        chosen = None
        for i, (_, _, _, inputs, queue, issued) in enumerate(ops):
            if i not in ends and all(j in ends for j in inputs):
                came = max([issued, *(ends[j] for j in inputs)])
                key = (max(came, free[queue]), came, i)
                if chosen is None or key < chosen:
                    chosen = key
        start, _, i = chosen
        name, lane, time, _, queue, _ = ops[i]
        free[queue] = ends[i] = start + time
        spans[i + 1] = (name, lane, start, ends[i])
    return spans


def predictions(c: dict) -> dict:
    """The step of every setting that the player offers, for its page.

    ``names`` are those of all operators; ``steps["2, 512, one bucket"]`` are the spans
    on 2 devices, each with the number of its name and whole microseconds.
    """
    names: dict[str, int] = {}
    steps = {}
    for n in COUNTS:
        for batch in PREDICTED_BATCHES:
            for way in WAYS:
                steps[f"{n}, {batch}, {way}"] = [
                    [names.setdefault(name, len(names)), lane, round(start), round(end)]
                    for name, lane, start, end in schedule(c, n, batch, way)
                ]
    return {"names": list(names), "steps": steps}


def numbers(spans: list[tuple], until: float) -> dict[str, float]:
    """How long the devices, added up, compute, communicate and idle up to a time.

    `overlapped` is the part of their communicating beside which a device computes.
    """
    lanes = range(1, max(lane for _, lane, _, _ in spans) + 1)
    edges = sorted({0, until, *(t for s in spans for t in s[2:] if 0 < t < until)})
    total = dict.fromkeys(("computing", "communicating", "overlapped", "idle"), 0.0)
    for start, end in zip(edges, edges[1:]):
        now = [s for s in spans if s[1] and s[2] <= start and s[3] >= end]
        sends = {s[1] for s in now if COMMUNICATION.match(s[0])}
        works = {s[1] for s in now if not COMMUNICATION.match(s[0])}
        total["computing"] += len(works) * (end - start)
        total["communicating"] += len(sends) * (end - start)
        total["overlapped"] += len(sends) * (end - start) * bool(works)
        total["idle"] += (len(lanes) - len(sends | works)) * (end - start)
    return total


def end_of(spans: list[tuple]) -> float:
    """When the last operator has ended."""
    return max(end for _, _, _, end in spans)


def errors(c: dict) -> list[str]:
    """How far the predictions are from the trace, and from the steps of a record."""
    said = []
    for batch in BATCHES:
        seen, ours = end_of(spans_of(batch)), end_of(schedule(c, 2, batch, WAYS[0]))
        said.append(
            f"{batch} images on two devices, as traced: predicted {ours / 1e3:.1f} ms, "
            f"measured {seen / 1e3:.1f} ms ({100 * (ours / seen - 1):+.0f} %)."
        )
    (study,) = studies([files.read(RECORD)])
    for n in study.counts:
        off = [
            100 * abs(end_of(schedule(c, n, batch, "one bucket")) / 1e6 / t - 1)
            for (count, batch), t in study.steps.items()
            if count == n
        ]
        said.append(
            f"Steps of {min(study.batches):,} to {max(study.batches):,} images on "
            f"{n} device{'s' * (n > 1)}, measured in another run without the profiler, "
            f"one bucket: missed by {median(off):.0f} % (median), "
            f"{max(off):.0f} % at most."
        )
    return said


def lanes_html(spans: list[tuple], title: str) -> str:
    """A row for Python and each device, as the player draws them."""
    end, rows = end_of(spans), []
    for lane in sorted({s[1] for s in spans}):
        name = f"device {lane - 1}" if lane else "Python"
        bars = "".join(
            f'<rect class="{kind(s)}" x="{s[2]:g}" width="{s[3] - s[2]:g}" height="9"/>'
            for s in spans
            if s[1] == lane
        )
        rows.append(
            f'<div class="lane"><span>{name}</span><svg viewBox="0 0 {end:g} 9" '
            f'preserveAspectRatio="none" aria-hidden="true">{bars}</svg></div>'
        )
    total = {name: t / 1e3 for name, t in numbers(spans, end).items()}
    text = ", ".join(f"{name} {ms:.1f}" for name, ms in total.items())
    title = f"{title}: {end / 1e3:.1f} ms; both devices together, ms: {text}"
    return f"<figure>{''.join(rows)}<figcaption>{title}</figcaption></figure>"


def kind(span: tuple) -> str:
    """The class of a bar."""
    if span[1] == 0:
        return "python"
    return "communicating" if COMMUNICATION.match(span[0]) else "computing"


def player_html() -> str:
    """What the page has in the place of its comment: data, figures, errors.

    The data are in the page because a browser does not fetch from a file.
    """
    c = constants()
    data = {
        "trace": json.loads(TRACE.read_text(encoding="utf-8")),
        "predicted": predictions(c),
    }
    inlined = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    still = "".join(lanes_html(spans_of(b), f"Batch {b}, measured") for b in BATCHES)
    missed = "".join(f"<li>{line}</li>" for line in errors(c))
    return (
        f'<div class="step-player"><noscript>{still}</noscript></div>\n'
        f'<script type="application/json" id="step-data">{inlined}</script>\n'
        f"<p>How far the prediction is off:</p><ul>{missed}</ul>\n"
    )


if __name__ == "__main__":
    print("\n".join(errors(constants())))
