"""Grades homework_pytorch.py by the tests of homework.py: a device is a process.

    python -m pytest --tb=line test_homework_pytorch.py

Each process gets its data from this one, which computes gradients and answers, and
counts the bytes that it sends. A process does not know the gradients of the others.
"""

import importlib.util
import socket
from multiprocessing.connection import wait
from pathlib import Path
from unittest import SkipTest

import numpy
from test_homework import *  # noqa: F403

from d2lpar.puzzles import apart
from d2lpar.puzzles.apart import Apart, Source
from d2lpar.puzzles.interconnect import read

if importlib.util.find_spec("torch") is None:
    raise SkipTest("no PyTorch: pip install torch")
apart.PRELOADED.append("torch")

# Run by each process: `call` is what this process calls.
PROCESS = """
from types import SimpleNamespace
import numpy, torch
from torch import distributed

own, kept = {"__name__": "homework"}, []

def start(rank, size, port, text):
    torch.set_num_threads(1)
    method = f"tcp://127.0.0.1:{port}"
    distributed.init_process_group(
        "gloo", init_method=method, rank=rank, world_size=size
    )
    exec(compile(text, "homework_pytorch.py", "exec"), own)

def tensor(array):
    return torch.from_numpy(numpy.array(array))

def numbers(tensors):
    return [t.detach().numpy() for t in tensors]

def get_params(arrays):
    source = [numpy.array(array) for array in arrays]
    params = own["get_params"](source)
    for array in source:
        array[...] = 7
    assert all(p.requires_grad and p.is_leaf for p in params), "require gradients"
    return numbers(params)

def allreduce(array):
    data = tensor(array)
    own["allreduce"](data)
    return data.numpy()

def split_batch(X, y):
    return numbers(own["split_batch"](tensor(X), tensor(y)))

def train_batch(X, y, params, lr, gradients):
    def loss(X, y, params):  # only its gradients are right
        grads = gradients(X.numpy(), y.numpy(), numbers(params))
        return sum((p * tensor(g)).sum() for p, g in zip(params, grads))

    if not all(map(numpy.array_equal, numbers(kept), params)) or not kept:
        kept[:] = own["get_params"]([numpy.array(p) for p in params])
    own["train_batch"](tensor(X), tensor(y), kept, lr, loss)
    return numbers(kept)

def combine(mean, count):
    return own["combine"](tensor(mean), count).numpy()

def cgls(b, times, transposed, num_steps):
    def on_tensors(product):
        return lambda x: tensor(product(x.numpy()))

    shard = SimpleNamespace(b=tensor(b))
    shard.times, shard.transposed = on_tensors(times), on_tensors(transposed)
    return own["cgls"](shard, num_steps).numpy()

def call(name, *args):
    return globals()[name](*args)
"""


def pytest_generate_tests(metafunc):
    """The arguments of a test are the homework's functions of these names."""
    path = Path(__file__).with_name("homework_pytorch.py")
    for name in metafunc.fixturenames:
        metafunc.parametrize(name, [InPyTorch.of(path, name)], ids=[name])


class InPyTorch(Source):
    """A function of homework_pytorch.py, which is called as that of homework.py."""

    def start(self, seconds):
        if self.name in ("break_even", "int8"):  # as in NumPy
            return Apart(Source(*self), seconds)
        return getattr(Processes(self), self.name)


class Processes:
    """Groups of gloo processes, of as many as a call needs, and what they answer."""

    def __init__(self, source):
        self.source, self.groups = source, {}

    def ask(self, *args, name=None):
        """Call the function in all processes, each with its own arguments."""
        size = len(args)
        if size not in self.groups:
            driver = Source(PROCESS, "call", *self.source[2:])
            self.groups[size] = [Apart(driver, 60) for _ in args]
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            text = self.source.text
            self.ask(*[(k, size, port, text) for k in range(size)], name="start")
        group = self.groups[size]
        for process, own in zip(group, args):
            process.send(name or self.source.name, *own)
        asked = {process.connection: process for process in group}
        while asked:  # the first to ask, first: the others may wait for it
            ready = wait(asked, 20)
            assert ready, f"{self.source.name}: no answer of {size} processes in 20 s"
            for connection in ready:
                if asked[connection].serve():
                    del asked[connection]
        return [process.found for process in group]

    def sent(self, size):
        """The bytes that each process has written, which the kernel counts, or inf."""
        for process in self.groups.get(size, []):
            path = Path(f"/proc/{process.process.pid}/io")
            words = path.read_text().split() if path.exists() else ["wchar:", "inf"]
            yield float(words[words.index("wchar:") + 1])

    def get_params(self, params, k, place):
        (found,) = self.ask((params,))
        return [place(k, p) for p in found], [place(k, 0 * p) for p in found]

    def allreduce(self, data, exchange):
        for array, found in zip(data, self.ask(*[(read(array),) for array in data])):
            read(array)[...] = found

    def split_batch(self, X, y, num_devices, place):
        found = self.ask(*[(X, y)] * num_devices)
        return [[place(k, f) for k, f in enumerate(of)] for of in zip(*found)]

    def train_batch(self, X, y, replicas, lr, backward, place, exchange):
        def gradients_of(k):
            def gradients(X, y, params):
                grads = [place(k, 0 * p) for p in params]
                rows = place(k, X), place(k, y)
                backward(*rows, [place(k, p) for p in params], grads)
                return [*map(read, grads)]

            return gradients

        size = len(replicas)
        before = list(self.sent(size)) or [0] * size
        all_params = [[*map(read, params)] for params, _ in replicas]
        args = [(X, y, p, lr, gradients_of(k)) for k, p in enumerate(all_params)]
        for params, found in zip(all_params, self.ask(*args)):
            for p, new in zip(params, found):
                p[...] = new
        for k, (old, new) in enumerate(zip(before, self.sent(size))):
            exchange.__self__.sent[k] += 99 if numpy.isinf(new) else (new - old) // 8

    def combine(self, means, counts):
        first, *others = self.ask(*zip(means, counts))
        for other in others:
            numpy.testing.assert_array_equal(other, first, "the processes differ")
        return first

    def cgls(self, shards, num_steps, exchange):
        place = exchange.__self__.place

        def on_device(k, product):
            return lambda x: read(product(place(k, x)))

        found = self.ask(*[
            (read(shard.b), on_device(k, shard.times),
             on_device(k, shard.transposed), num_steps)
            for k, shard in enumerate(shards)
        ])  # fmt: skip
        return [place(k, x) for k, x in enumerate(found)]
