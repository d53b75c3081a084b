"""The line that helps where memory runs out, and the memory that comes back."""

import re
import weakref

import pytest
from support.command import python

from d2lpar._mxnet import mx, np, npx
from d2lpar.devices import parse
from d2lpar.machine import host
from d2lpar.memory import out_of_memory

MIB = 2**20


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError(), True),
        (mx.MXNetError("x\nMXNetError: Failed to allocate CPU Memory"), True),
        (mx.MXNetError("cuBLAS: CUBLAS_STATUS_NOT_INITIALIZED"), True),
        (mx.MXNetError("CUDNN_STATUS_BAD_PARAM"), False),
        (RuntimeError("out of memory of what to say"), False),
    ],
)
def test_what_is_out_of_memory(error, told):
    assert out_of_memory.is_out_of_memory(error) is told


def test_the_line_names_what_helps(monkeypatch):
    def line(free, batch, devices=1):
        memory = host.HostMemory(2**50, free)
        monkeypatch.setattr(host, "host_memory", lambda: memory)
        return out_of_memory.advice(parse(f"cpu:{devices}"), batch, said="no")

    text = line(1000 * MIB, 6000, devices=2)
    assert text.startswith("out of memory on cpu(0) to cpu(1) (no): ")
    assert "float32 (3000, 20, 26, 26), takes 154.7 MiB" in text and "\n" not in text
    fitting = int(re.search(r"--global-batch-size (\d+)", text)[1])
    assert 100 < fitting < 6000
    assert line(MIB, None).endswith("free: use less data or a smaller batch")
    assert "not even a batch of 1" in line(MIB, 60)
    assert "--global-batch-size" not in line(2**40, 60)


def test_an_error_keeps_its_frames_until_it_is_released():
    def fails():
        array = np.ones((3, 3))
        seen.append(weakref.ref(array))
        raise MemoryError

    seen = []
    try:
        fails()
    except MemoryError as error:
        kept = error
    assert seen[0]() is not None
    out_of_memory.release(parse("cpu:1"), kept)
    assert seen[0]() is None


def test_release_drops_the_errors_of_work_that_failed():
    no_root = -np.eye(3)
    failing = [np.linalg.cholesky(no_root)]
    with pytest.raises(mx.MXNetError):
        npx.waitall()
    failing += [np.linalg.cholesky(no_root) for _ in range(3)]
    out_of_memory.release(parse("cpu:1"))
    npx.waitall()  # nothing is left to tell


def test_a_limit_of_the_process_counts():
    code = """
from d2lpar.machine.host import host_memory
from d2lpar.memory import out_of_memory
with out_of_memory.limited(50 * 2**20):
    print(host_memory().free)
    try:
        bytearray(100 * 2**20)
    except MemoryError as error:
        print(out_of_memory.is_out_of_memory(error))
print(host_memory().free > 60 * 2**20, len(bytearray(100 * 2**20)))
"""
    free, told, *after = python(code).split()
    assert 40 * MIB < int(free) <= 50 * MIB
    assert told == "True" and after == ["True", str(100 * MIB)]
