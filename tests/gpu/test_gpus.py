"""What only GPUs do; the tests of CPUs with the fixture `contexts` run on them, too.

python -m pytest -m gpu
"""

import numpy
import pytest
from support.command import python
from support.places import take

from d2lpar import datasets, experiments
from d2lpar._mxnet import np
from d2lpar.arrays import operations, timings
from d2lpar.devices import Device
from d2lpar.kernels import ElementwiseKernel, KernelError
from d2lpar.low_precision.measure import measure
from d2lpar.records.kinds import PrecisionRecord
from d2lpar.runs import plan, sweep

pytestmark = pytest.mark.gpu

DETERMINISTIC = {"MXNET_ENFORCE_DETERMINISM": "1", "MXNET_CUDNN_AUTOTUNE_DEFAULT": "0"}


@pytest.fixture
def gpu():
    return take("gpu", 1)[0]


@pytest.fixture(params=[1, 2], ids=["1 GPU", "2 GPUs"])
def gpus(request):
    return take("gpu", request.param)


@pytest.mark.parametrize("chapter", ["multiple_gpus", "multiple_gpus_concise"])
def test_deterministic_repeats_are_equal_to_the_bit(
    chapter, gpus, tmp_path, monkeypatch
):
    """Two processes, large enough batches for another order of sums to show."""
    for name, value in DETERMINISTIC.items():
        monkeypatch.setenv(name, value)
    repeated = plan.Job(
        experiment=experiments.get(chapter),
        preset="quick",
        devices=[Device(gpu.device_type, gpu.device_id) for gpu in gpus],
        seeds=(0, 0),
        settings={"num_epochs": 3, "global_batch_size": 2100, "lr": 0.2},
        data={"name": "sample", "n_test": 100},
        command="d2lpar run test",
        folder=tmp_path,
    )
    (run,) = sweep.sweep([repeated])
    assert run.header.gpu_build["deterministic"] is True
    losses = [epoch.train_loss for epoch in run.epochs]
    assert len(losses) == 6 and losses[:3] == losses[3:]


GRAPHS = """
import sys
from d2lpar import datasets, devices, lenet, lenet_concise
data = datasets.fashion_sample(n_train=1900, n_test=1000)
for epoch in lenet_concise.train(
    devices=devices.parse("gpu:" + sys.argv[2]), data=data,
    state=lenet.start(0, scale=0.1), num_epochs=3, lr=0.1,
    global_batch_size=int(sys.argv[1]),
):
    print(epoch.train_loss.hex(), epoch.test_acc)
"""


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("per_device", [96, 400])
def test_cuda_graphs_compute_the_same_bits(per_device, n):
    """With biases as biases, and as weights; the last batch of an epoch is smaller."""
    take("gpu", n)
    printed = []
    for graphs in "01":
        environment = {"MXNET_ENABLE_CUDA_GRAPHS": graphs, **DETERMINISTIC}
        printed.append(python(GRAPHS, n * per_device, n, **environment).splitlines())
    assert len(printed[0]) == 3 and printed[0] == printed[1]


# Kernels


@pytest.mark.parametrize("ctype", ["unsigned char", "long long"])
def test_types_that_mx_rtc_names_otherwise(ctype, gpu):
    double = ElementwiseKernel(
        f"const {ctype} *x, {ctype} *y", "y[i] = 2 * x[i]", "doubled"
    )
    dtype = double.parameters[0].dtype
    x, y = numpy.arange(60).astype(dtype), np.zeros(60, dtype=dtype, ctx=gpu)
    double(np.array(x, dtype=dtype, ctx=gpu), y)
    numpy.testing.assert_array_equal(y.asnumpy(), 2 * x)


def test_division_and_square_root_are_rounded_as_numpys(gpu):
    arguments = "const float *x, const float *y, float *z"
    divide = ElementwiseKernel(arguments, "z[i] = sqrtf(x[i]) / y[i]", "divide")
    x, y = numpy.random.default_rng(0).random((2, 1000), dtype="float32") + 1
    z = np.zeros(1000, ctx=gpu)
    divide(np.array(x, ctx=gpu), np.array(y, ctx=gpu), z)
    numpy.testing.assert_array_equal(z.asnumpy(), numpy.sqrt(x) / y)


def test_a_kernel_that_does_not_compile_is_named(gpu):
    wrong = ElementwiseKernel("int *x", "x[i] = nothing_of_the_kind", "wrong")
    with pytest.raises(KernelError, match="kernel wrong does not compile: .*undefined"):
        wrong(np.zeros(3, dtype="int32", ctx=gpu))


# Memory that runs out


OUT_OF_MEMORY = """
from d2lpar._mxnet import mx
from d2lpar.memory import out_of_memory

gpu, held = mx.gpu(0), []
try:
    for _ in range(10**4):  # 8 GiB each, until there is no more
        held.append(mx.nd.zeros((2**30,), ctx=gpu, dtype="float64"))
        held[-1].wait_to_read()
except mx.MXNetError as error:
    assert out_of_memory.WORDS.search(str(error))
    said = str(error).splitlines()[0]
    print(out_of_memory.advice([gpu], said, 256))
"""


def test_out_of_memory_is_one_line(gpu):
    """In a process of its own, so that no other test depends on it."""
    (line,) = python(OUT_OF_MEMORY).splitlines()
    assert line.startswith(f"out of memory on {gpu} (") and "float32 (256, " in line
    assert " are free: " in line


# Array operations and precisions


SIZES = operations.Sizes(
    x2=10_001, sum_rows=203, trig=300, product=67, largest_copy=2**14
)


def test_every_form_of_the_timed_operations_is_right(gpus):
    """Each result is checked where it is timed; no kernel may be left out."""
    records = list(timings.time_all(devices=gpus, data=SIZES, warmup=1, repeats=2))
    forms = {(record.operation, record.form) for record in records}
    assert {("x2", "one kernel"), ("trig", "one kernel")} <= forms


def test_pytorch_is_timed_on_the_gpu_as_well(gpu, torch):
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    records = timings.time_all(devices=[gpu], data=SIZES, warmup=1, repeats=2)
    places = [r.devices[0].split()[0] for r in records if r.library == "PyTorch"]
    assert sorted(places) == 6 * [str(gpu)] + 6 * ["host"]


def test_a_precision_is_measured_or_refused_for_its_own_reason(gpu):
    lines = measure(
        devices=[gpu],
        data=datasets.fashion_sample(n_train=100, n_test=100),
        precisions=["float32", "int8-none", "int8-naive"],
        per_device_batch_size=50,
        calibration_images=100,
        repeats=1,
        num_epochs=1,
    )
    for row in lines:
        if isinstance(row, PrecisionRecord):
            assert row.supported or (row.why_not and "\n" not in row.why_not)
            assert "cpu(0)" not in (row.why_not or "")
            if row.precision == "float32":
                assert row.supported and row.agreement == 1
