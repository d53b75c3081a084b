"""A step traced operator by operator."""

import json
import subprocess
import sys

PROGRAM = """
from d2lpar import devices
from d2lpar.scaling.trace import draw, trace_steps
(step,) = trace_steps(devices.parse("cpu:2"), [16])
ends = [max(end for _, on, _, end in step.spans if on == lane) for lane in (1, 2)]
assert list(step.busy) == ["Python", "device 0", "device 1"]
assert step.straggler in (0, 1) and 0 <= step.waiting < max(ends) <= step.milliseconds
assert len(draw([step]).axes[0].patches) == len(step.spans)
"""


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
