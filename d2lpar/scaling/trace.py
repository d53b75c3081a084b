"""Steps, operator by operator. MXNet's profiler writes once per process."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from d2lpar import autograd, gluon, mx, np, npx
from d2lpar.lenet import init_lenet, train_batch
from d2lpar.parallel import get_params, split_batch
from d2lpar.records.atomic import cell_output, replacing

SUMS = ("CopyCPU2CPU", "_npi_add")  # what an all-reduce does


def profile(steps: Sequence[Callable[[], object]]) -> list[tuple[float, float, list]]:
    """Return (done, issued, spans) in ms of the fastest of 8 tries of each step."""
    fastest = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "profile.json")
        mx.profiler.set_config(profile_all=True, filename=str(path))
        mx.profiler.set_state("run")
        for step in steps:
            taken = []
            for _ in range(8):
                npx.waitall()
                begin = 1e3 * time.time()
                step()
                issued = 1e3 * time.time() - begin
                npx.waitall()
                taken.append((1e3 * time.time() - begin, issued, begin))
            fastest.append(min(taken))
        mx.profiler.set_state("stop")
        mx.profiler.dump()
        events = json.loads(path.read_text())["traceEvents"]
    places = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    begins, ends = ([e for e in events if e["ph"] == phase] for phase in "BE")
    traced = []
    for done, issued, start in fastest:
        spans = [
            (b["name"], places[b["pid"]], b["ts"] / 1e3 - start, e["ts"] / 1e3 - start)
            for b, e in zip(begins, ends)
            if start < b["ts"] / 1e3 < start + done
        ]
        traced.append((done, issued, spans))
    return traced


class TracedStep(NamedTuple):
    """A step on several devices, in ms: `spans` are (name, lane, begin, end).

    Lane 0 is Python, k + 1 device k. The `straggler`'s backward pass ends last,
    `waiting` ms after the first.
    """

    batch_size: int
    milliseconds: float
    spans: list[tuple[str, int, float, float]]
    busy: dict[str, float]
    straggler: int
    waiting: float


def trace_steps(devices: Sequence, batch_sizes: Sequence[int]) -> list[TracedStep]:
    """Trace LeNet's step for each batch size; write one-step-trace.json, too."""
    calls, steps, events = [], [], []
    for batch in batch_sizes:
        X = np.random.uniform(size=(batch, 1, 28, 28), ctx=devices[0])
        y = np.arange(batch, ctx=devices[0]) % 10
        device_params = [get_params(init_lenet(), device) for device in devices]
        calls.append(partial(train_batch, X, y, device_params, devices, lr=1e-3))
    places = [f"{device.device_type}/{device.device_id}" for device in devices]
    for batch, (done, issued, operators) in zip(batch_sizes, profile(calls)):
        spans, busy, ready = [("Python", 0, 0.0, issued)], {"Python": issued}, []
        first_sum = min(begin for name, _, begin, _ in operators if name == SUMS[1])
        for lane, place in enumerate(places, 1):
            own = [
                (name, lane, begin, end)
                for name, on, begin, end in operators
                if on == place and name != "DeleteVariable"
            ]
            spans += own
            busy[f"device {lane - 1}"] = sum(end - begin for *_, begin, end in own)
            before = (e for name, _, _, e in own if name not in SUMS and e <= first_sum)
            ready.append(max(before))
        last = max(ready)
        waiting = last - min(ready)
        steps.append(TracedStep(batch, done, spans, busy, ready.index(last), waiting))
        for name, lane, begin, end in spans:
            ts, dur = round(1e3 * begin), round(1e3 * (end - begin))
            event = dict(name=name, ph="X", pid=batch, tid=lane, ts=ts, dur=dur)
            events.append(event)
    with replacing(cell_output("one-step-trace.json")) as tmp:
        tmp.write_text(json.dumps({"traceEvents": events}))
    return steps


def draw(steps: Sequence[TracedStep]) -> Figure:
    """Return a figure with a row per step, and in it a lane per device."""
    figure = Figure(figsize=(8, 2.2 * len(steps)), layout="constrained")
    for axes, step in zip(figure.subplots(len(steps), squeeze=False)[:, 0], steps):
        for name, lane, begin, end in step.spans:
            color = "C2" if name in SUMS else "C0" if lane else "0.4"
            axes.barh(lane, end - begin, left=begin, color=color)
        axes.set_yticks(range(len(step.busy)), list(step.busy))
        axes.invert_yaxis()
        axes.set_title(f"a step of {step.batch_size} images; green: copies and sums")
        axes.set_xlabel("milliseconds")
    return figure


class TracedBackward(NamedTuple):
    """When the Trainer's sums begin, and when their backward pass ends; ms in it."""

    sums: list[float]
    end: float


def trace_backward(
    nets: Sequence, devices: Sequence, batch_size: int
) -> list[TracedBackward]:
    """Trace a step of each Gluon network, whose Trainer sums on the host."""
    X = np.random.uniform(size=(batch_size, 1, 28, 28))
    shards = list(zip(*split_batch(X, np.arange(batch_size) % 10, devices)))
    loss = gluon.loss.SoftmaxCrossEntropyLoss()

    def step(net: gluon.Block, trainer: gluon.Trainer) -> None:
        with autograd.record():
            losses = [loss(net(X_k), y_k) for X_k, y_k in shards]
        for shard_loss in losses:
            shard_loss.backward()
        trainer.step(batch_size)

    how = {"kvstore": "local", "update_on_kvstore": False}
    sgd = "sgd", {"learning_rate": 0.01}
    trainers = [gluon.Trainer(net.collect_params(), *sgd, **how) for net in nets]
    traced = []
    for _, _, spans in profile([partial(step, *pair) for pair in zip(nets, trainers)]):
        passes = [s for s in spans if s[0].startswith(("_backward", "ImperativeB"))]
        begin = min(b for _, _, b, _ in passes)
        sums = sorted(b - begin for name, _, b, _ in spans if name == "KVStoreReduce")
        traced.append(TracedBackward(sums, max(e for *_, e in passes) - begin))
    return traced
