"""Calls of the exported functions with odd values, as tables: the call, and its error.

Each error is a TypeError or a ValueError, ours or Python's, of one line that names the
value. Those of `solve` are in least_squares/test_scales.py.
"""

import re

import numpy
import pytest

from d2lpar import (
    allreduce,
    datasets,
    devices,
    evaluate_accuracy,
    gan,
    get_params,
    init_lenet,
    kernels,
    lenet,
    lenet_concise,
    mx,
    np,
    split_batch,
    synthetic_fashion,
    timing,
    train_batch,
)
from d2lpar.least_squares import solve

CPUS = [mx.cpu(0), mx.cpu(1)]
X, y = numpy.zeros((4, 1, 28, 28), "float32"), numpy.arange(4)
ONES = [numpy.ones(3)]
NOT_A_LIST = "write a list of contexts, such as d2lpar.devices.parse('cpu:2')"
DTYPES = "MXNet has float16, float32, float64, uint8, int8, int32, int64 and bool"


def one(device):
    return np.ones(1, ctx=device)


def replicas(**_):
    return [get_params(init_lenet(), device) for device in CPUS]


def step(X=X, y=y, device_params=None, devices=CPUS, lr=0.1, **how):
    chosen = replicas() if device_params is None else device_params
    train_batch(X, y, chosen, devices, lr, **how)


def evaluate(X=X[:, 0], y=y, device_params=None, devices=CPUS, **how):
    chosen = replicas() if device_params is None else device_params
    evaluate_accuracy(X, y, chosen, devices, **how)


def train(module=lenet, **how):
    list(module.train(**{"num_devices": 1, "devices": "cpu:1", **how}))


HELPERS = [
    (lambda: get_params(ONES, "cpu:1"), f"devices ['cpu:1']: {NOT_A_LIST}"),
    (lambda: get_params(ONES, None), f"devices [None]: {NOT_A_LIST}"),
    (lambda: get_params(["a"], CPUS[0]), f"an array of dtype <U1: {DTYPES}"),
    (lambda: get_params([1j], CPUS[0]), f"an array of dtype complex128: {DTYPES}"),
    (lambda: allreduce(None), "allreduce: NoneType: write a list with one array"),
    (lambda: allreduce(one(CPUS[0])), "allreduce: ndarray: write a list with one"),
    (lambda: allreduce(map(one, CPUS)), "allreduce: map: write a list with one array"),
    (lambda: allreduce([]), "allreduce: the list of arrays is empty"),
    (lambda: allreduce(ONES), "allreduce: numpy.ndarray lies on no device: make it"),
    (lambda: allreduce([1, 2]), "allreduce: builtins.int lies on no device"),
    (lambda: split_batch(X, y, "cpu:2"), f"devices 'cpu:2': {NOT_A_LIST}"),
    (lambda: split_batch(X, y, iter(CPUS)), "write a list of contexts"),
    (lambda: split_batch(X, y, []), "split_batch: the list of devices is empty"),
    (lambda: split_batch(3, 3, CPUS), "X of shape () and y of shape () differ"),
    (lambda: split_batch("ab", "ab", CPUS), "X of shape () and y of shape () differ"),
    (lambda: split_batch(X, y[:3], CPUS), "y of shape (3,) differ in length"),
    (lambda: split_batch(X[:0], y[:0], CPUS), "split_batch: the batch is empty"),
    (lambda: split_batch(X.astype("uint16"), y, CPUS), f"dtype uint16: {DTYPES}"),
    (lambda: split_batch(X.astype("float128"), y, CPUS), f"dtype float128: {DTYPES}"),
    (lambda: split_batch(X, numpy.array([None] * 4), CPUS), f"object: {DTYPES}"),
    (lambda: init_lenet(numpy.nan), "init_lenet: scale nan: write a finite number"),
    (lambda: init_lenet(-1), "init_lenet: scale -1: write a finite number, 0 or more"),
    (lambda: devices.parse(None), "devices None: write a text such as 'cpu:2'"),
    (lambda: devices.parse("cpu:٣"), "devices 'cpu:٣': write auto, cpu:N"),
    (lambda: devices.parse("cpu:257"), "devices 'cpu:257': 256 are the most"),
]
STEPS = [
    ({"lr": "0.1"}, "train_batch: lr '0.1': write a finite number"),
    ({"lr": None}, "train_batch: lr None: write a finite number"),
    ({"lr": numpy.nan}, "train_batch: lr nan: write a finite number"),
    ({"lr": 10**400}, "write a finite number"),
    ({"devices": "cpu:2"}, f"devices 'cpu:2': {NOT_A_LIST}"),
    ({"devices": [], "device_params": []}, "the list of devices is empty"),
    ({"device_params": [init_lenet()] * 2}, "replica 0 has no gradients: make it by"),
    ({"y": y + 100}, "train_batch: label 100: write classes from 0 to 9"),
    ({"y": y - 1}, "train_batch: label -1: write classes from 0 to 9"),
    ({"y": y + 0.5}, "train_batch: label 0.5: write classes from 0 to 9"),
    ({"y": y * numpy.nan}, "train_batch: label nan: write classes from 0 to 9"),
    ({"y": numpy.eye(10)[y]}, "labels of shape (4, 10): write one class for each"),
    ({"y": list("abcd")}, f"an array of dtype <U1: {DTYPES}"),
    ({"X": X.astype("float64")}, "X is float64, the parameters are float32"),
    ({"X": X.tolist()}, "X is float64, the parameters are float32"),
    ({"loss": lambda y_hat, y: 3}, "the loss is 3: return an array of MXNet"),
    ({"loss": lambda y_hat, y: None}, "the loss is None: return an array of MXNet"),
]
EVALUATIONS = [
    ({"X": X}, "X of shape (4, 1, 28, 28) and y of shape (4,): write images"),
    ({"X": X[:0, 0], "y": y[:0]}, "write images (n, 28, 28) and one class for each"),
    ({"X": X[:, 0] * numpy.nan}, "X holds NaN or infinities"),
    ({"X": X[:, 0].astype(complex)}, "X is of dtype complex128: write integers or"),
    ({"X": X[:, 0].astype(bool)}, "X is of dtype bool: write integers or floats"),
    ({"X": X[:, 0].astype(int) - 1}, "X from -1 to -1: integers are images in 0..255"),
    ({"X": X.tolist()}, "X is a list: write an array of NumPy or MXNet"),
    ({"y": y * numpy.nan}, "y holds NaN or infinities"),
    ({"y": y + 0.5}, "y holds labels that are no whole numbers"),
    ({"y": list("abcd")}, "y is a list: write an array of NumPy or MXNet"),
    ({"devices": "cpu:2"}, f"devices 'cpu:2': {NOT_A_LIST}"),
    ({"device_params": []}, "0 replicas for 2 devices"),
    ({"batch_size": 0}, "batch-size 0: write a whole number, 1 or more"),
    ({"batch_size": "a"}, "batch-size 'a': write a whole number, 1 or more"),
    ({"batch_size": None}, "batch-size None: write a whole number, 1 or more"),
]
TRAININGS = [
    ({"lr": "a"}, "lr 'a': write a finite number greater than 0"),
    ({"lr": None}, "lr None: write a finite number greater than 0"),
    ({"lr": True}, "lr True: write a finite number greater than 0"),
    ({"num_epochs": 1.5}, "num-epochs 1.5: write a whole number, 1 to 2,147,483,647"),
    ({"num_epochs": "a"}, "num-epochs 'a': write a whole number, 1 to"),
    ({"num_epochs": 2**31}, "num-epochs 2147483648: write a whole number, 1 to"),
    ({"global_batch_size": numpy.inf}, "global-batch-size inf: write a whole number"),
    ({"global_batch_size": 2**63}, "global-batch-size 9223372036854775808: write a"),
    ({"num_devices": 0}, "num-devices '0': write whole numbers above 0"),
    ({"num_devices": True}, "num-devices 'True': write whole numbers above 0"),
    ({"num_devices": 2}, "num-devices 2: --devices gives 1; ask for 1 to 1"),
    ({"devices": []}, "devices []: the list is empty; write at least one context"),
    ({"devices": None}, f"devices None: {NOT_A_LIST}"),
    ({"module": lenet_concise, "lr": "a"}, "lr 'a': write a finite number"),
    ({"module": gan, "lr": "a"}, "lr 'a': write a finite number greater than 0"),
    ({"module": gan, "frames_every": 1.5}, "frames-every 1.5: write a whole number"),
    ({"module": gan, "micro_batch_size": "a"}, "micro-batch-size 'a': write a whole"),
]
MODULES = [
    (
        lambda: synthetic_fashion(0, 5),
        "n_train 0: write a whole number, 1 to 1,000,000",
    ),
    (lambda: synthetic_fashion(5, 1.5), "n_test 1.5: write a whole number, 1 to"),
    (lambda: synthetic_fashion(10**30, 5), f"n_train {10**30}: write a whole number"),
    (lambda: datasets.synthetic_punks(10**9, 0), "n 1000000000: write a whole number"),
    (lambda: datasets.load("mnist"), "data 'mnist': write one of auto, fashion-mnist"),
    (lambda: datasets.load(None), "data None: write one of auto, fashion-mnist"),
    (lambda: datasets.uniform_problem(0, 0), "rows, columns (0, 0): write whole"),
    (
        lambda: datasets.uniform_file(-1, 5),
        "rows, columns (-1, 5): write whole numbers",
    ),
    (lambda: list(datasets.batches(X, y, -1)), "4 labels, batch size -1: write"),
    (lambda: list(datasets.batches(X, y[:2], 1)), "4 images, 2 labels, batch size 1"),
    (lambda: timing.measure(one, "cpu:2"), f"devices 'cpu:2': {NOT_A_LIST}"),
    (lambda: timing.measure(one, []), "timing of the operation: the list of devices"),
    (lambda: timing.measure(lambda _: None, CPUS), "its results cannot be joined"),
    (lambda: timing.measure_host(lambda: 3, 1), "its results cannot be joined"),
    (lambda: timing.measure(one, CPUS, repeats=2.5), "repeats 2.5, warmup 2: write"),
    (lambda: timing.measure(one, CPUS, rtol=numpy.nan), "rtol nan: write 0 or more"),
    (lambda: timing.measure(one, CPUS, repeats=0), "repeats 0, warmup 2: write 1 or"),
    (lambda: gan.sample(gan.start(), 0, 0, CPUS[0]), "n 0: write a whole number"),
    (lambda: gan.sample(gan.start(), 2, 0, "cpu"), f"devices ['cpu']: {NOT_A_LIST}"),
    (lambda: gan.Nets(gan.start(), "cpu:1", 1e-4), f"devices 'cpu:1': {NOT_A_LIST}"),
    (lambda: kernels.CudaModule(None), "source None: write the kernels in CUDA C"),
    (lambda: kernels.ElementwiseKernel(3, "x", "f"), "signature 3: write a text"),
    (lambda: kernels.ElementwiseKernel("int *x", "x", "f;"), "kernel 'f;': a name is"),
    (
        lambda: solve(numpy.ma.masked_equal(numpy.eye(3), 0), [1, 2, 3]),
        "A is masked: leave out the rows that do not count",
    ),
    (lambda: solve(numpy.eye(2), numpy.ma.ones(2)), "b is masked: leave out the rows"),
]
CALLS = [
    *HELPERS,
    *[(lambda given=given: step(**given), says) for given, says in STEPS],
    *[(lambda given=given: evaluate(**given), says) for given, says in EVALUATIONS],
    *[(lambda given=given: train(**given), says) for given, says in TRAININGS],
    *MODULES,
]


@pytest.mark.parametrize(
    ("call", "says"), CALLS, ids=[ascii(s)[1:50] for _, s in CALLS]
)
def test_a_call_that_cannot_be_is_named(call, says):
    with pytest.raises((TypeError, ValueError), match=re.escape(says)) as caught:
        call()
    assert "\n" not in str(caught.value)
