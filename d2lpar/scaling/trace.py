"""Steps of training, operator by operator, for chapters 6 and 7.

MXNet's profiler writes once per process, so call one of the two functions, once.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from d2lpar import autograd, gluon, mx, np, npx
from d2lpar.networks import init_lenet
from d2lpar.parallel import get_params, split_batch, train_batch
from d2lpar.records.atomic import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PATH = "runs/one-step-trace.json"
STEPS = 8  # of which the fastest is kept
ADD = "_npi_add"
SUMS = ("CopyCPU2CPU", ADD)  # what an all-reduce does


@contextmanager
def profiled() -> Iterator[list[tuple[str, str, float, float]]]:
    """Fill the list, when the block ends, with the operators that ran within.

    Each is its name, its place ("cpu/0"), and its begin and end in milliseconds.
    """
    operators: list[tuple[str, str, float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder, "profile.json")
        mx.profiler.set_config(profile_all=True, filename=str(profile))
        mx.profiler.set_state("run")
        yield operators
        mx.profiler.set_state("stop")
        mx.profiler.dump()
        events = json.loads(profile.read_text())["traceEvents"]
    places = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    begins, ends = ([e for e in events if e["ph"] == phase] for phase in "BE")
    for b, e in zip(begins, ends):
        operators.append((b["name"], places[b["pid"]], b["ts"] / 1e3, e["ts"] / 1e3))


@dataclass(frozen=True)
class TracedStep:
    """A step on several devices, in milliseconds since Python began to issue it.

    `spans` are (name, lane, begin, end) of operators; lane 0 is Python, k + 1 device k.
    """

    batch_size: int
    milliseconds: float
    spans: list[tuple[str, int, float, float]]

    @property
    def busy(self) -> dict[str, float]:
        """Milliseconds that Python and each device are busy."""
        busy: dict[str, float] = {}
        for _, lane, begin, end in sorted(self.spans, key=lambda span: span[1]):
            name = f"device {lane - 1}" if lane else "Python"
            busy[name] = busy.get(name, 0.0) + end - begin
        return busy

    @property
    def gradients_ready(self) -> list[float]:
        """When the backward pass of each device ends, its last work before the sums."""
        first_sum = min(begin for name, _, begin, _ in self.spans if name == ADD)
        return [
            max(
                end
                for name, on, _, end in self.spans
                if on == lane and name not in SUMS and end <= first_sum
            )
            for lane in range(1, len(self.busy))
        ]

    @property
    def straggler(self) -> int:
        """The device whose gradients are ready last."""
        return self.gradients_ready.index(max(self.gradients_ready))

    @property
    def waiting(self) -> float:
        """Milliseconds from the first device's gradients to the straggler's."""
        return max(self.gradients_ready) - min(self.gradients_ready)


def trace_steps(devices: Sequence, batch_sizes: Sequence[int]) -> list[TracedStep]:
    """Trace a step of LeNet from scratch for each global batch size.

    Writes runs/one-step-trace.json for trace viewers and the book's step player:
    processes are the batch sizes, threads the lanes, times whole microseconds.
    """
    with profiled() as operators:
        times = {batch: _fastest(devices, batch) for batch in batch_sizes}
    lanes = {f"{d.device_type}/{d.device_id}": k for k, d in enumerate(devices, 1)}
    steps, events = [], []
    for batch, (start, issued, done) in times.items():
        spans = [("Python", 0, 0.0, issued - start)]
        for name, place, begin, end in operators:
            if start < begin < done and place in lanes and name != "DeleteVariable":
                spans.append((name, lanes[place], begin - start, end - start))
        steps.append(TracedStep(batch, done - start, spans))
        for name, lane, begin, end in spans:
            ts, dur = round(1e3 * begin), round(1e3 * (end - begin))
            event = dict(name=name, ph="X", pid=batch, tid=lane, ts=ts, dur=dur)
            events.append(event)
    with replacing(PATH) as tmp:
        tmp.write_text(json.dumps({"traceEvents": events}))
    return steps


def _fastest(devices: Sequence, batch: int) -> tuple[float, float, float]:
    """Return when the fastest of some steps begins, is issued and is done; ms."""
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
        steps.append((1e3 * begin, 1e3 * issued, 1e3 * time.time()))
    return min(steps, key=lambda step: step[2] - step[0])


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
        title = f"a step of {step.batch_size} images; green: copies and sums"
        axes.set_title(title, fontsize="medium")
        axes.set_xlabel("milliseconds")
    return figure


class TracedBackward(NamedTuple):
    """When the Trainer's sums begin, and when their backward pass ends; ms in it."""

    sums: list[float]
    end: float


def trace_backward(
    nets: Sequence, devices: Sequence, batch_size: int
) -> list[TracedBackward]:
    """Trace a step of each Gluon network, whose Trainer sums on the host.

    The networks take images (n, 1, 28, 28) and are initialised on `devices`.
    """
    X = np.random.uniform(size=(batch_size, 1, 28, 28))
    shards = list(zip(*split_batch(X, np.arange(batch_size) % 10, devices)))
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    times, traced = [], []
    with profiled() as operators:
        for net in nets:
            how = {"kvstore": "local", "update_on_kvstore": False}
            parameters = net.collect_params()
            trainer = gluon.Trainer(parameters, "sgd", {"learning_rate": 0.01}, **how)
            for _ in range(3):  # the first two warm up
                npx.waitall()
                start = 1e3 * time.time()
                with autograd.record():
                    losses = [loss(net(X_k), y_k) for X_k, y_k in shards]
                for shard_loss in losses:
                    shard_loss.backward()
                trainer.step(batch_size)
            npx.waitall()
            times.append((start, 1e3 * time.time()))
    for start, done in times:
        step = [(name, b, e) for name, _, b, e in operators if start < b < done]
        passes = [o for o in step if o[0].startswith(("_backward", "ImperativeB"))]
        begin = min(b for _, b, _ in passes)
        sums = sorted(b - begin for name, b, _ in step if name == "KVStoreReduce")
        traced.append(TracedBackward(sums, max(e for _, _, e in passes) - begin))
    return traced
