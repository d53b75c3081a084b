"""What is free on the host, under the limits of a process, and on GPUs."""

import psutil
import pytest

from d2lpar._mxnet import mx
from d2lpar.errors import DeviceError
from d2lpar.memory.free import free_memory, report

MIB = 2**20


def test_free_on_the_host_is_between_nothing_and_all():
    three = free_memory([mx.cpu(k) for k in range(3)])
    assert 0 < three[0] < psutil.virtual_memory().total
    assert three == [three[0]] * 3
    lines = list(report([mx.cpu(0), mx.cpu(1)]))
    assert len(lines) == 2 and "cpu(1)" in lines[1]


def test_a_limit_of_the_process_counts(in_a_process):
    code = """
from d2lpar.memory import free, out_of_memory
with out_of_memory.limited(50 * 2**20):
    print(free.host_free())
    try:
        bytearray(100 * 2**20)
    except MemoryError as error:
        print(out_of_memory.is_out_of_memory(error))
print(free.host_free() > 60 * 2**20, len(bytearray(100 * 2**20)))
"""
    free, told, *after = in_a_process(code).split()
    assert 40 * MIB < int(free) <= 50 * MIB
    assert told == "True" and after == ["True", str(100 * MIB)]


def test_free_on_gpus_is_by_cudas_number(gpus):
    chosen = gpus(3 * MIB, 5 * MIB)
    assert free_memory(chosen) == [3 * MIB, 5 * MIB]
    assert free_memory([mx.gpu(1)]) == [5 * MIB]
    with pytest.raises(DeviceError, match=r"gpu\(7\)"):
        free_memory([mx.gpu(7)])
