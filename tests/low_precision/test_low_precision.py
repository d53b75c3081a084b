"""Low precision: the conversion, what INT8 changes, and rows for refusals."""

import numpy
import pytest

from d2lpar import datasets, lenet, lenet_concise, process
from d2lpar._mxnet import lowering_array, lowering_semantics, mx, np
from d2lpar.devices import names
from d2lpar.low_precision.lowering import lower, to_symbol_block, weight_bytes
from d2lpar.low_precision.measure import infer, measure, predictions
from d2lpar.records.kinds import EpochRecord, PrecisionRecord

CPU = mx.cpu()
PARAMETERS = 180 + 20 + 25_000 + 50 + 102_400 + 128 + 1_280 + 10


@pytest.fixture(scope="module")
def data():
    return datasets.load("sample", n_train=1_000, n_test=500)


@pytest.fixture(scope="module")
def params(data):
    """A network that has learnt something, from a start off the plateau."""
    state = lenet.start(seed=0, scale=0.1)
    recipe = {"global_batch_size": 16, "lr": 0.1, "num_epochs": 2}
    *_, last = lenet_concise.train(1, devices="cpu:1", data=data, state=state, **recipe)
    assert last.test_acc > 0.5
    return state.params


@pytest.fixture(scope="module")
def task(data, params):
    return {
        "data": data.head(n_train=200),
        "y_float32": predictions(params, data.X_test, CPU),
        "devices": names("cpu:1"),
        "per_device_batch_size": 100,
        "repeats": 1,
    }


def gluon_lenet(params):
    return lenet_concise.build(params, [CPU], lr=1)[0]


def test_the_symbol_block_is_the_block(data, params):
    X = datasets.to_float(data.X_test[:60])
    net = gluon_lenet(params)
    expected = net(np.array(X)).asnumpy()
    symbol_block = to_symbol_block(net, CPU)
    with lowering_semantics():
        scores = symbol_block(lowering_array(X, CPU)).asnumpy()
    assert (scores == expected).all()
    again = net(np.array(X))  # the block still works, on NumPy arrays
    assert type(again) is np.ndarray and (again.asnumpy() == expected).all()


@pytest.mark.parametrize(
    ("precision", "least", "most_bytes"),
    [
        ("float32", 1.0, 4 * PARAMETERS),
        # INT8 keeps the convolutions' weights in float32, see weight_bytes
        ("int8-none", 0.93, 2 * PARAMETERS),
        ("int8-naive", 0.95, 2 * PARAMETERS),
        pytest.param("int8-entropy", 0.95, 2 * PARAMETERS, marks=pytest.mark.slow),
        ("int8-channels-naive", 0.95, 4 * PARAMETERS),
    ],
)
def test_each_precision_agrees_with_float32(precision, least, most_bytes, task, params):
    row = infer(precision, params, **task)
    assert row.agreement >= least
    float32_acc = (task["y_float32"] == task["data"].y_test).mean()
    assert abs(row.test_acc - float32_acc) <= 1 - row.agreement + 1e-9
    assert row.weight_bytes <= most_bytes
    assert 0 < row.images_per_sec_q1 <= row.images_per_sec <= row.images_per_sec_q3
    assert (row.n, row.per_device_batch_size) == (1, 100)


def test_without_calibration_every_batch_has_its_own_ranges(data, params):
    """By default MXNet's dense layers keep those of the first batch."""
    bright = datasets.to_float(data.X_test[:50])
    dark, scores = bright / 8, []
    for batches in ([dark], [bright, dark]):
        net = lower(gluon_lenet(params), "int8-none", bright, CPU, 50)
        with lowering_semantics():
            *_, last = [net(lowering_array(X, CPU)).asnumpy() for X in batches]
        scores.append(last)
    numpy.testing.assert_array_equal(*scores)


def test_weight_bytes_are_those_of_the_parameters(params):
    net = gluon_lenet(params)
    assert weight_bytes(net) == 4 * PARAMETERS
    X = numpy.random.default_rng(0).random((100, 1, 28, 28)).astype("float32")
    quantized = lower(net, "int8-naive", X, CPU, 100)
    convolutions = 4 * (180 + 20 + 25_000 + 50)
    ranges = 2 * 4 * 4  # least and largest of two weights and two biases
    dense = 102_400 + 128 + 1_280 + 10
    assert weight_bytes(quantized) == convolutions + dense + ranges
    values = [p.data() for p in quantized.collect_params().values()]
    (weight,) = [value for value in values if value.size == 102_400]
    rounded = weight.asnumpy().astype(float)
    scale = numpy.abs(params[4]).max() / 127
    numpy.testing.assert_allclose(rounded * scale, params[4].T, atol=0.51 * scale)


def test_two_devices_infer_what_one_does(task, params):
    """500 images in batches of 60: the last batch is smaller."""
    batches = {"per_device_batch_size": 60}
    one, both = (
        infer("int8-naive", params, **{**task, "devices": names(devices), **batches})
        for devices in ("cpu:1", "cpu:2")
    )
    assert (both.agreement, both.test_acc) == (one.agreement, one.test_acc)


SETTINGS = {
    "devices": "cpu:1", "num_epochs": 1, "global_batch_size": 64,
    "per_device_batch_size": 50, "calibration_images": 100, "repeats": 2,
}  # fmt: skip


def test_a_precision_whose_process_dies_is_a_row(data, monkeypatch):
    answer = process.answer
    monkeypatch.setattr(process, "answer", lambda *job: answer("os:abort", {}))
    _, row = measure(data=data, precisions=["float16"], **SETTINGS)
    assert row.why_not.startswith("ended with ") and "\n" not in row.why_not
    assert (row.precision, row.n, row.supported) == ("float16", 0, False)


def test_measure_yields_its_epoch_and_a_row_for_each_precision(data, monkeypatch):
    """In this process: the test above, and the lesson's, start others."""

    def answer(function, job):
        return infer(**job)

    monkeypatch.setattr(process, "answer", answer)
    small = data.head(n_train=500, n_test=100)
    precisions = ("float32", "int8-naive")
    lines = list(measure(1, data=small, precisions=precisions, **SETTINGS))
    assert [type(line) for line in lines] == [EpochRecord] + [PrecisionRecord] * 2
    rows = lines[1:]
    assert [row.precision for row in rows] == list(precisions)
    assert rows[0].agreement == 1 and rows[0].n == 2
    assert rows[0].test_acc == pytest.approx(lines[0].test_acc)
