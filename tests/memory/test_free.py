"""What is free on the host, under the limits of a process, and on GPUs."""

import pytest

from d2lpar._mxnet import mx
from d2lpar.errors import DeviceError
from d2lpar.memory.free import free_memory

MIB = 2**20


def cpus(n):
    return [mx.cpu(k) for k in range(n)]


def test_free_on_the_host_is_between_nothing_and_all():
    with open("/proc/meminfo") as f:
        total = 1024 * int(f.readline().split()[1])
    (free,) = free_memory(cpus(1))
    assert 0 < free < total
    three = free_memory(cpus(3))  # what is free changes between two calls
    assert three == [three[0]] * 3


def test_a_limit_of_the_process_counts(in_a_process):
    code = """
from d2lpar.memory import free, out_of_memory
before = free.process_status("VmData")
with out_of_memory.limited(50 * 2**20):
    print(free.host_free(running=True), free.host_free() - before)
    try:
        bytearray(100 * 2**20)
    except MemoryError as error:
        print(out_of_memory.is_out_of_memory(error))
print(free.host_free(running=True) > 60 * 2**20, len(bytearray(100 * 2**20)))
"""
    free, for_a_new_one, told, *after = in_a_process(code).split()
    assert 40 * MIB < int(free) <= 50 * MIB
    assert 45 * MIB < int(for_a_new_one) < 55 * MIB
    assert told == "True" and after == ["True", str(100 * MIB)]


def test_free_on_gpus_is_by_cudas_number(gpus):
    chosen = gpus(3 * MIB, 5 * MIB)
    assert free_memory(chosen) == [3 * MIB, 5 * MIB]
    assert free_memory([mx.gpu(1)]) == [5 * MIB]
    with pytest.raises(DeviceError, match=r"gpu\(7\).*d2lpar devices"):
        free_memory([mx.gpu(7)])
