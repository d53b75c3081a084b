"""The line that helps where memory runs out."""

import re

from d2lpar.devices import parse
from d2lpar.machine import host
from d2lpar.memory import out_of_memory

MIB = 2**20


def test_what_is_out_of_memory():
    found = out_of_memory.WORDS.search
    assert found("x\nMXNetError: Failed to allocate CPU Memory")
    assert found("cuBLAS: CUBLAS_STATUS_NOT_INITIALIZED")
    assert not found("CUDNN_STATUS_BAD_PARAM")


def test_the_line_names_what_helps(monkeypatch):
    def line(free, batch, devices=1):
        monkeypatch.setattr(host, "host_memory", lambda: (2**50, free))
        return out_of_memory.advice(parse(f"cpu:{devices}"), "no", batch)

    text = line(1000 * MIB, 6000, devices=2)
    assert text.startswith("out of memory on cpu(0) to cpu(1) (no): ")
    assert ": 1,000 MiB are free: " in text and "\n" not in text
    fitting = int(re.search(r"--global-batch-size (\d+)", text)[1])
    assert 100 < fitting < 6000
    assert line(MIB, None).endswith("free: use less data or a smaller batch")
    assert "not even a batch of 1" in line(MIB, 60)
    assert "--global-batch-size" not in line(2**40, 60)
