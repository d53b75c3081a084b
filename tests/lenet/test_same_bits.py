"""`same_bits`: no bit of a training depends on the number of devices."""

import functools

import numpy
import pytest
from msgspec.structs import asdict
from support import steps

from d2lpar import datasets, lenet, lenet_concise
from d2lpar._mxnet import mx
from d2lpar.devices import for_chunks
from d2lpar.parallel import allreduce_in_tree

CPUS = [mx.cpu(k) for k in range(9)]
TIMES = ("seconds", "samples_per_sec", "eval_seconds")
BOTH = pytest.mark.parametrize("workload", [lenet, lenet_concise])


@pytest.fixture(scope="module")
def data():
    """149 images: two batches of 70, which 8 does not divide, and one of 9."""
    return datasets.fashion_sample(n_train=149, n_test=30)


def trained(workload, contexts, data, same_bits=True):
    """The epochs' records without times, and the parameters."""
    state = lenet.start(0, scale=0.1)
    records = workload.train(
        devices=contexts, data=data, global_batch_size=70, lr=0.1, state=state,
        num_epochs=2, same_bits=same_bits,
    )  # fmt: skip
    lines = [
        {name: value for name, value in asdict(record).items() if name not in TIMES}
        for record in records
    ]
    return lines, state.params


def equal(a, b):
    return all(numpy.array_equal(p, q) for p, q in zip(a, b))


@BOTH
def test_records_and_parameters_are_equal_to_the_bit(workload, data):
    expected, one = trained(workload, CPUS[:1], data)
    assert len({line["params_sha256"] for line in expected}) == 2
    for count in (2, 3, 4, 8):
        lines, params = trained(workload, CPUS[:count], data)
        assert lines == expected and equal(params, one)
    usual, params = trained(workload, CPUS[:1], data, same_bits=False)
    assert usual[0]["params_sha256"] is None and steps.distance(params, one) < 1e-4


scratch = functools.partial(steps.scratch, reduce=allreduce_in_tree)


@pytest.mark.parametrize("steps_of", [scratch, steps.concise])
@pytest.mark.parametrize("n", [5, 20])  # fewer samples than chunks, too
def test_a_step_of_ones_own(n, steps_of):
    ends = [steps_of(for_chunks(CPUS[:count]), n, 3) for count in (1, 2, 3)]
    for replicas in ends:
        assert all(equal(replica, ends[0][0]) for replica in replicas)
    assert steps.distance(ends[0][0], steps.scratch(CPUS[:1], n, 3)[0]) < 1e-5


def test_devices_that_do_not_take_turns_are_refused_in_gluon():
    with pytest.raises(ValueError, match="in turn"):
        steps.concise([CPUS[0], CPUS[0], CPUS[1], CPUS[1]], 8, 1)
