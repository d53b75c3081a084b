"""Every workload on one GPU, on two, and on a CPU; memory that runs out; precisions."""

import numpy
import pytest
from support.command import python
from support.places import take

from d2lpar import datasets, experiments, gan
from d2lpar._mxnet import mx
from d2lpar.datasets import punks
from d2lpar.devices import Device
from d2lpar.least_squares import solve
from d2lpar.parallel import split_batch
from d2lpar.records.kinds import PrecisionRecord
from d2lpar.runs import job, sweep

pytestmark = pytest.mark.gpu

CLOSE = 1e-4  # relative, of float32 without TF32
DETERMINISTIC = {"MXNET_ENFORCE_DETERMINISM": "1", "MXNET_CUDNN_AUTOTUNE_DEFAULT": "0"}


def distance(a, b):
    """The largest relative distance of two lists of arrays, each by its norm."""
    return max(
        numpy.linalg.norm(p - q) / (numpy.linalg.norm(q) + 1e-3) for p, q in zip(a, b)
    )


# LeNet; the tests of CPUs with `contexts` compare it


@pytest.mark.parametrize("chapter", ["multiple_gpus", "multiple_gpus_concise"])
def test_deterministic_repeats_are_equal_to_the_bit(
    chapter, gpus, tmp_path, monkeypatch
):
    """Two processes, large enough batches for another order of sums to show."""
    for name, value in DETERMINISTIC.items():
        monkeypatch.setenv(name, value)
    repeated = job.Job(
        experiment=experiments.get(chapter),
        preset="quick",
        recipe="quick",
        devices=[Device(gpu.device_type, gpu.device_id) for gpu in gpus],
        seed=0,
        settings={"num_epochs": 3, "global_batch_size": 2100, "lr": 0.2},
        data={"name": "sample", "n_test": 100},
        command="d2lpar run test",
        folder=tmp_path,
    )
    (run,) = sweep.sweep([repeated], repeats=2)
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


# The GAN


LR = 1e-4
NETWORKS = pytest.mark.parametrize(
    ("width", "d_norm"), [(None, "none"), (8, "spectral"), (8, "batch")]
)


def gan_steps(contexts, width, d_norm, **options):
    """Two steps on 11 faces: losses, gradients of the first step, parameters."""
    rng = numpy.random.default_rng(1)
    X = rng.random((11, 3, 24, 24), dtype="float32")
    state = gan.start(0, width, d_norm)
    nets, losses, gradients = gan.Nets(state, contexts, lr=LR), [], []
    z = rng.standard_normal((11, *nets.G.z_shape), dtype="float32")
    for _ in range(2):
        d, g, _ = gan.step(*split_batch(X, z, contexts), nets, **options)
        losses += [sum(map(float, d)), sum(map(float, g))]
        for adam in (nets.adam_D, nets.adam_G):
            first = [replicas[0].asnumpy().ravel() for replicas in adam.gradients]
            gradients.append(numpy.concatenate(first))
    nets.update(state)
    return losses, gradients[:2], state.params_D + state.params_G


def assert_same_steps(steps, others):
    """Compare what :func:`gan_steps` returned.

    Adam's first steps have nearly the length of the learning rate whatever the size of
    a gradient. Where rounding decides the sign of a gradient, as of some of BatchNorm's
    betas, whose gradient is a thousandth of their neighbours', parameters may end up to
    two learning rates per step apart. The gradients themselves must agree.
    """
    (losses, gradients, params), (expected, other_gradients, other_params) = (
        steps,
        others,
    )
    assert losses == pytest.approx(expected, rel=CLOSE)
    assert distance(gradients, other_gradients) < 10 * CLOSE
    for p, q in zip(params, other_params):
        most = 2 * LR * 2 + 10 * CLOSE * numpy.abs(q).max()
        numpy.testing.assert_allclose(p, q, rtol=0, atol=most)


@NETWORKS
def test_the_gan_on_one_gpu_is_that_of_a_cpu(gpu, width, d_norm):
    assert_same_steps(
        gan_steps([gpu], width, d_norm), gan_steps([mx.cpu(0)], width, d_norm)
    )


@NETWORKS
def test_the_synchronised_gan_on_two_gpus_is_that_of_one(two_gpus, width, d_norm):
    assert_same_steps(
        gan_steps(two_gpus, width, d_norm, synchronised=True),
        gan_steps(two_gpus[:1], width, d_norm),
    )


def test_a_gan_on_a_gpu_is_resumed(gpu):
    """Its parameters are views of one array, its moments come from another."""
    data = punks.load("synthetic", n_train=60)

    def trained(state, num_epochs):
        for _ in gan.train(None, devices=[gpu], global_batch_size=25, lr=1e-3,
                           num_epochs=num_epochs, data=data, state=state):  # fmt: skip
            pass
        return state

    whole = trained(gan.start(7, 8, "spectral"), 2)
    stopped = trained(gan.start(7, 8, "spectral"), 1)
    resumed = gan.TrainingState.restore(stopped.tensors(), stopped.facts())
    trained(resumed, 1)
    names = list(whole.tensors())
    ours, expected = ([s.tensors()[n] for n in names] for s in (resumed, whole))
    assert distance(ours, expected) < 10 * CLOSE
    assert resumed.facts() == whole.facts()


# Least squares


def problem(m=603, n=20):
    rng = numpy.random.default_rng(0)
    return rng.normal(size=(m, n)), rng.normal(size=m)


@pytest.mark.parametrize("method", ["normal", "tsqr", "cgls"])
def test_least_squares_are_lapacks(method, gpus):
    A, b = problem()
    solution = solve(A, b, devices=gpus, method=method)
    right = numpy.linalg.lstsq(A, b, rcond=None)[0]
    numpy.testing.assert_allclose(solution.x, right, rtol=1e-6, atol=1e-8)
    norm = numpy.linalg.norm(A @ right - b)
    numpy.testing.assert_allclose(solution.residual_norm, norm, rtol=1e-10)
    assert len(solution.devices) == len(gpus)


@pytest.mark.parametrize("method", ["normal", "tsqr"])
def test_least_squares_in_float32_without_tf32(method, gpus):
    A, b = problem()
    x = solve(A, b, devices=gpus, method=method, dtype="float32").x
    right = numpy.linalg.lstsq(A, b, rcond=None)[0]
    assert numpy.linalg.norm(x - right) < 1e-5 * numpy.linalg.norm(right)


def test_averaging_is_that_of_cpu_contexts(gpus):
    A, b = problem()
    options = {"method": "averaging", "num_epochs": 3, "seed": 4}
    on_cpus = solve(A, b, devices=[mx.cpu(k) for k in range(len(gpus))], **options)
    x = solve(A, b, devices=gpus, **options).x
    numpy.testing.assert_allclose(x, on_cpus.x, rtol=1e-6, atol=1e-9)


def test_a_failed_cholesky_factorisation_is_seen(gpus):
    """cuSOLVER reports it; MXNet ignores that."""
    A, b = problem()
    A[:, 7] = A[:, 3] - 2 * A[:, 5]
    with pytest.raises(ValueError, match="tsqr"):
        solve(A, b, devices=gpus, method="normal")
    solution = solve(A, b, devices=gpus, method="tsqr")
    assert solution.rank == 19
    right = numpy.linalg.lstsq(A, b, rcond=None)[0]
    numpy.testing.assert_allclose(solution.x, right, rtol=1e-6, atol=1e-8)


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
    print(out_of_memory.advice([gpu], 256, said=said))
"""


def test_out_of_memory_is_one_line(gpu):
    """In a process of its own, so that no other test depends on it."""
    (line,) = python(OUT_OF_MEMORY).splitlines()
    assert line.startswith(f"out of memory on {gpu} (") and "float32 (256, " in line
    assert f" are free on {gpu}: " in line


# Array operations and precisions


SIZES = {
    "x2": 10_001, "sum_rows": 203, "trig": 300, "product": 67, "largest_copy": 2**14
}  # fmt: skip


def test_every_form_of_the_timed_operations_is_right(gpus):
    """Each result is checked where it is timed; no kernel may be left out."""
    from d2lpar.arrays import operations, timings

    sizes = operations.Sizes(**SIZES)
    records = list(timings.time_all(devices=gpus, data=sizes, warmup=1, repeats=2))
    forms = {(record.operation, record.form) for record in records}
    assert {("x2", "one kernel"), ("trig", "one kernel")} <= forms
    assert (("all-reduce", "allreduce") in forms) == (len(gpus) == 2)


def test_pytorch_is_timed_on_the_gpu_as_well(gpu, torch):
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    from d2lpar.arrays import operations, timings

    sizes = operations.Sizes(**SIZES)
    forms: dict[tuple[str, str], list[str]] = {}
    for record in timings.time_all(devices=[gpu], data=sizes, warmup=1, repeats=2):
        if record.library == "PyTorch":
            places = forms.setdefault((record.operation, record.form), [])
            places.append(record.devices[0].partition(" ")[0])
    assert len(forms) == 6
    assert all(places == ["host", str(gpu)] for places in forms.values())


def test_a_precision_is_measured_or_refused_for_its_own_reason(gpu):
    from d2lpar.low_precision.measure import measure

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
