"""What several test files need. Imports no MXNet: some tests run without it."""

import fcntl
import ipaddress
import os
import pickle
import signal
import socket
from functools import partial

import hypothesis
import pytest
from support.command import d2lpar
from support.places import take

# A shell's background job ignores Ctrl-C, and so would every process that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# The same examples in each run; HYPOTHESIS_PROFILE=default draws new ones.
hypothesis.settings.register_profile("same", derandomize=True, database=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
# A user's threads are no concern of a test that does not set them.
os.environ.pop("OMP_NUM_THREADS", None)
# Processes that tests start find no network either, whatever library they ask.
os.environ.update(dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9"))


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Refuse every connection beyond loopback: a newcomer's tests run offline, too."""
    connect = socket.socket.connect

    def to_loopback(self, address):
        if self.family in (socket.AF_INET, socket.AF_INET6):
            if address[0] != "localhost":
                where = ipaddress.ip_address(address[0])
                assert where.is_loopback, f"a test connects to {address}"
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", to_loopback)


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def contexts(request):
    """``contexts(n)``: n CPU contexts, or under `-m gpu` the first n GPUs."""
    return partial(take, request.param)


@pytest.fixture
def compiler():
    """Skip without a C++ compiler."""
    from d2lpar.kernels import KernelError, on_cpu

    try:
        on_cpu.compiler()
    except KernelError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed: extra peers")


@pytest.fixture(scope="session")
def real_run(tmp_path_factory):
    """A folder that a run of two epochs on one and two contexts has filled, and it.

    It runs once: the workers of pytest-xdist share it. Do not write to the folder.
    """
    base = tmp_path_factory.getbasetemp()
    out = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "real-run"
    out.mkdir(exist_ok=True)
    with (out / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ended = out / "done.pickle"
        if not ended.exists():
            done = d2lpar(
                "run", "multiple_gpus", "--dry-run", "--num-epochs=2",
                "--checkpoint-every=1", "--data=sample", "--devices=cpu:2",
                f"--out={out}", cwd=out,
            )  # fmt: skip
            ended.write_bytes(pickle.dumps(done))
    (folder,) = out.glob("multiple_gpus/*")  # named by the threads that are set here
    return folder, pickle.loads(ended.read_bytes())
