"""`same_bits`: no bit of a training depends on the number of devices."""

import numpy
import pytest
from msgspec.structs import asdict
from support import steps

from d2lpar import datasets, lenet, lenet_concise
from d2lpar._mxnet import mx
from d2lpar.buckets import Bucket
from d2lpar.devices import for_chunks
from d2lpar.errors import DeviceError
from d2lpar.parallel import allreduce_in_tree, get_params

CPUS = [mx.cpu(k) for k in range(9)]
TIMES = ("seconds", "samples_per_sec", "eval_seconds")
BOTH = pytest.mark.parametrize("workload", [lenet, lenet_concise])


@pytest.fixture(scope="module")
def data():
    """149 images: two batches of 70, which 8 does not divide, and one of 9."""
    return datasets.fashion_sample(n_train=149, n_test=30)


def trained(workload, contexts, data, num_epochs=2, state=None, same_bits=True):
    """The epochs' records without times, and the state, from weights that learn."""
    state = lenet.start(0, scale=0.1) if state is None else state
    records = workload.train(
        devices=contexts, data=data, global_batch_size=70, lr=0.1, state=state,
        num_epochs=num_epochs, same_bits=same_bits,
    )  # fmt: skip
    lines = [
        {name: value for name, value in asdict(record).items() if name not in TIMES}
        for record in records
    ]
    return lines, state


def equal(a, b):
    return all(numpy.array_equal(p, q) for p, q in zip(a, b))


@BOTH
def test_records_and_parameters_are_equal_to_the_bit(workload, data):
    expected, one = trained(workload, CPUS[:1], data)
    assert len({line["params_sha256"] for line in expected}) == 2
    for count in (2, 3, 4, 8):
        lines, state = trained(workload, CPUS[:count], data)
        assert lines == expected and equal(state.params, one.params)
    usual, state = trained(workload, CPUS[:1], data, same_bits=False)
    assert usual[0]["params_sha256"] is None  # and up to rounding the same training
    for p, q in zip(one.params, state.params):
        numpy.testing.assert_allclose(p, q, atol=1e-4)


@BOTH
def test_it_goes_on_with_the_same_bits_on_other_devices(workload, data):
    _, whole = trained(workload, CPUS[:2], data, 3)
    state = None
    for count in (3, 1, 4):
        _, state = trained(workload, CPUS[:count], data, 1, state)
    assert state.epoch == 3 and equal(state.params, whole.params)


@pytest.mark.parametrize("make", [get_params, Bucket])
@pytest.mark.parametrize("n", [5, 20])  # fewer samples than chunks, too
def test_a_step_of_ones_own_from_scratch(n, make):
    def ends(contexts, **options):
        return steps.scratch(for_chunks(contexts), n, 3, make=make, **options)

    own = {"reduce": allreduce_in_tree}
    if make is Bucket:
        own["update"] = steps.BUCKETS["update"]
    one = ends(CPUS[:1], **own)
    assert all(equal(replica, one[0]) for replica in one)
    for count in (2, 3):
        assert equal(ends(CPUS[:count], **own)[-1], one[0])
    assert steps.distance(one[0], steps.scratch(CPUS[:1], n, 3)[0]) < 1e-5


@pytest.mark.parametrize("n", [5, 20])
def test_a_step_of_ones_own_in_gluon(n):
    ends = [steps.concise(for_chunks(CPUS[:count]), n, 3) for count in (1, 2, 3)]
    for replicas in ends:
        assert all(equal(replica, ends[0][0]) for replica in replicas)
    assert steps.distance(ends[0][0], steps.scratch(CPUS[:1], n, 3)[0]) < 1e-5
    with pytest.raises(ValueError, match="in turn"):
        steps.concise([CPUS[0], CPUS[0], CPUS[1], CPUS[1]], n, 1)


def test_more_devices_than_chunks_are_refused(data):
    with pytest.raises(DeviceError, match="9 devices for 8 chunks"):
        trained(lenet, CPUS, data)
