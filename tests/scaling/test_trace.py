"""A step traced operator by operator."""

import json
import subprocess
import sys

from d2lpar.scaling.trace import TracedStep, draw

PROGRAM = """
from d2lpar import devices
from d2lpar.scaling.trace import trace_steps
trace_steps(devices.parse("cpu:2"), [16])
"""


def test_the_straggler_is_the_device_whose_gradients_are_ready_last():
    spans = [
        ("Python", 0, 0.0, 2.0),
        ("Convolution", 1, 1.0, 3.0),
        ("_backward", 1, 3.0, 8.0),
        ("Convolution", 2, 0.0, 8.0),  # the longest operator, not the last one
        ("_backward", 2, 8.0, 10.5),
        ("CopyCPU2CPU", 2, 10.5, 11.0),
        ("_npi_add", 1, 11.0, 11.5),
        ("_npi_subtract", 1, 11.5, 12.0),
    ]
    step = TracedStep(16, 12.0, spans)
    assert step.busy == {"Python": 2.0, "device 0": 8.0, "device 1": 11.0}
    assert step.gradients_ready == [8.0, 10.5]
    assert (step.straggler, step.waiting) == (1, 2.5)
    assert len(draw([step]).axes[0].patches) == len(spans)


def test_a_traced_step_of_two_contexts_is_whole(tmp_path):
    """In a process of its own, because MXNet's profiler writes once per process."""
    subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, check=True)
    trace = tmp_path / "runs" / "one-step-trace.json"
    events = json.loads(trace.read_text())["traceEvents"]
    (python,) = (e for e in events if e["tid"] == 0)
    assert python["ts"] == 0 and {e["pid"] for e in events} == {16}
    for lane in (1, 2):
        names = [e["name"] for e in events if e["tid"] == lane]
        assert names.count("Convolution") == names.count("Pooling") == 2
