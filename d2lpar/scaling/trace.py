"""Single steps of training, operator by operator, as MXNet's profiler sees them.

Chapters 6 and 7 show such steps; the book's step player reads the file that is written.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from d2lpar import autograd, gluon, mx, np, npx
from d2lpar.networks import init_lenet
from d2lpar.parallel import get_params, split_batch, train_batch
from d2lpar.records.atomic import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = 8  # of which the fastest is kept
SUMS = ("CopyCPU2CPU", "_npi_add")  # what an all-reduce does
REDUCE = "KVStoreReduce"  # the Trainer's sum of one array


@dataclass(frozen=True)
class TracedStep:
    """A step on two devices; times are milliseconds since Python began to issue it."""

    batch_size: int
    milliseconds: float
    spans: list[tuple[str, int, float, float]]
    """name, lane, begin, end of each operator; lane 0 is Python, k + 1 is device k"""

    @property
    def busy(self) -> dict[str, float]:
        """Milliseconds that Python and each device are busy."""
        names = ["Python", *(f"device {k}" for k in range(self._num_devices))]
        return {
            name: sum(end - begin for _, on, begin, end in self.spans if on == lane)
            for lane, name in enumerate(names)
        }

    @property
    def straggler(self) -> int:
        """The device whose backward pass ends last."""
        return max(range(self._num_devices), key=self._backward_ends)

    @property
    def waiting(self) -> float:
        """Milliseconds from the first end of a backward pass to the straggler's."""
        ends = [self._backward_ends(device) for device in range(self._num_devices)]
        return max(ends) - min(ends)

    @property
    def _num_devices(self) -> int:
        return max(lane for _, lane, _, _ in self.spans)

    def _backward_ends(self, device: int) -> float:
        # MXNet runs the operators of a backward pass as one, the longest of a step.
        mine = [span for span in self.spans if span[1] == device + 1]
        return max(mine, key=lambda span: span[3] - span[2])[3]


@dataclass(frozen=True)
class TracedBackward:
    """A backward pass in Gluon; times are milliseconds since it began."""

    sums: list[float]
    """when each of the Trainer's sums begins, in order"""
    end: float


def trace_steps(
    devices: Sequence,
    batch_sizes: Sequence[int],
    path: str = "runs/one-step-trace.json",
) -> list[TracedStep]:
    """Trace a step of LeNet from scratch for each global batch size.

    MXNet's profiler writes once per process, so call this once. `path` gets the steps
    in the form of trace viewers: processes are the batch sizes, thread 0 is Python and
    thread k + 1 device k.
    """
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder, "profile.json")
        mx.profiler.set_config(profile_imperative=True, filename=str(profile))
        mx.profiler.set_state("run")
        times = {batch: _fastest(devices, batch) for batch in batch_sizes}
        mx.profiler.set_state("stop")
        mx.profiler.dump()
        operators = _operators(json.loads(profile.read_text()), devices)
    steps = [_step(batch, *times[batch], operators) for batch in batch_sizes]
    events = [event for step in steps for event in _events(step)]
    with replacing(path) as tmp:
        tmp.write_text(json.dumps({"traceEvents": events}))
    return steps


def trace_backward(
    nets: Sequence, devices: Sequence, batch_size: int
) -> list[TracedBackward]:
    """Trace a step of each Gluon network, whose Trainer sums on the host.

    The networks take images (n, 1, 28, 28) and are initialised on `devices`. MXNet's
    profiler writes once per process, so call this once.
    """
    marks = []
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder, "profile.json")
        mx.profiler.set_config(profile_all=True, filename=str(profile))
        for net in nets:
            step = _gluon_step(net, devices, batch_size)
            step(), step()  # warm up
            npx.waitall()
            mx.profiler.set_state("run")
            marks.append(1e6 * time.time())
            step()
            npx.waitall()
            mx.profiler.set_state("stop")
        mx.profiler.dump()
        events = json.loads(profile.read_text())["traceEvents"]
    begun: dict[tuple, float] = {}
    operations = []
    for event in events:
        key = event.get("pid"), event.get("tid"), event["name"]
        if event["ph"] == "B":
            begun[key] = event["ts"]
        elif event["ph"] == "E" and key in begun:
            operations.append((event["name"], begun.pop(key), event["ts"]))
    spans = zip(marks, [*marks[1:], float("inf")])
    return [_backward([o for o in operations if a <= o[1] < b]) for a, b in spans]


def _gluon_step(net: Any, devices: Sequence, batch_size: int) -> Callable[[], None]:
    X = np.random.uniform(size=(batch_size, 1, 28, 28))
    X_shards, y_shards = split_batch(X, np.arange(batch_size) % 10, devices)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gluon.Trainer(
        net.collect_params(),
        "sgd",
        {"learning_rate": 0.01},
        kvstore="local",
        update_on_kvstore=False,
    )

    def step() -> None:
        with autograd.record():
            losses = [loss(net(X_k), y_k) for X_k, y_k in zip(X_shards, y_shards)]
        for shard_loss in losses:
            shard_loss.backward()
        trainer.step(batch_size)

    return step


def _backward(operations: list[tuple[str, float, float]]) -> TracedBackward:
    passes = [o for o in operations if o[0].startswith(("_backward", "ImperativeB"))]
    start = min(begin for _, begin, _ in passes)
    sums = sorted((b - start) / 1e3 for name, b, _ in operations if name == REDUCE)
    return TracedBackward(sums, (max(end for _, _, end in passes) - start) / 1e3)


def _fastest(devices: Sequence, batch: int) -> tuple[float, float, float]:
    """When the fastest of some steps begins, is issued and is done; microseconds."""
    X = np.random.uniform(size=(batch, 1, 28, 28), ctx=devices[0])
    y = np.arange(batch, ctx=devices[0]) % 10
    device_params = [get_params(init_lenet(), device) for device in devices]
    steps = []
    for _ in range(STEPS):
        npx.waitall()
        begin = time.time()
        train_batch(X, y, device_params, devices, lr=1e-3)
        issued = time.time()
        npx.waitall()
        steps.append((1e6 * begin, 1e6 * issued, 1e6 * time.time()))
    return min(steps, key=lambda step: step[2] - step[0])


def _operators(profile: dict[str, Any], devices: Sequence) -> list[tuple]:
    """Name, lane, begin and end of the operators that a profile has, microseconds."""
    events = profile["traceEvents"]
    lanes = {f"{d.device_type}/{d.device_id}": k + 1 for k, d in enumerate(devices)}
    lane_of = {e["pid"]: lanes.get(e["args"]["name"]) for e in events if e["ph"] == "M"}
    begins, ends = ([e for e in events if e["ph"] == phase] for phase in "BE")
    return [
        (b["name"], lane_of[b["pid"]], b["ts"], e["ts"])
        for b, e in zip(begins, ends)
        if lane_of[b["pid"]] is not None and b["name"] != "DeleteVariable"
    ]


def _step(
    batch: int, begin: float, issued: float, done: float, operators: list[tuple]
) -> TracedStep:
    seen = [operator for operator in operators if begin < operator[2] < done]
    spans = [
        (name, lane, (start - begin) / 1e3, (end - begin) / 1e3)
        for name, lane, start, end in [("Python", 0, begin, issued), *seen]
    ]
    return TracedStep(batch, (done - begin) / 1e3, spans)


def _events(step: TracedStep) -> list[dict[str, Any]]:
    """The step as events of a trace viewer, whole microseconds."""
    return [
        {
            "name": name,
            "ph": "X",
            "pid": step.batch_size,
            "tid": lane,
            "ts": round(1e3 * begin),
            "dur": round(1e3 * (end - begin)),
        }
        for name, lane, begin, end in step.spans
    ]


def draw(steps: Sequence[TracedStep]) -> Figure:
    """Return a Matplotlib figure: a row per step, in it a lane per device."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 2.2 * len(steps)), layout="constrained")
    for axes, step in zip(figure.subplots(len(steps), squeeze=False)[:, 0], steps):
        for name, lane, begin, end in step.spans:
            color = "C2" if name in SUMS else "C0" if lane else "0.4"
            axes.barh(lane, end - begin, left=begin, color=color)
        axes.set_yticks(range(len(step.busy)), list(step.busy))
        axes.invert_yaxis()
        axes.set_title(
            f"a step of {step.batch_size} images; green: copies and sums",
            fontsize="medium",
        )
        axes.set_xlabel("milliseconds")
    return figure
