"""What the PyTorch programs share: data, a network, and processes that stay alive.

A program defines ``train(net, X, y, lr)``. Every process calls it with the whole batch,
and takes its shard, as under torchrun. With D2LPAR_BACKEND=nccl each has a GPU.
"""

import os
import tempfile

import numpy
import torch
import torch._dynamo  # DDP imports it: once here, and not in every process
from torch import distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD

__all__ = ["DDP", "F", "SGD", "distributed", "nn", "torch"]
BACKEND = os.environ.get("D2LPAR_BACKEND", "gloo")
DTYPE = os.environ.get("D2LPAR_DTYPE", "float32")
torch.set_default_dtype(getattr(torch, DTYPE))
pipes = {}  # to the processes, of each number of devices


def plain():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def values(net):
    """The parameters, a tied one as often as it has names."""
    return list(net.state_dict(keep_vars=True).values())


def init(seed, net=plain):
    torch.manual_seed(seed)
    return [p.detach().numpy() for p in values(net())]


def batch(n, seed):
    rng = numpy.random.default_rng(seed)
    X = rng.normal(size=(n, 6)).astype(DTYPE)
    return X, rng.integers(0, 3, n)


def shard(*arrays):
    """This process's rows."""
    rank, num_devices = distributed.get_rank(), distributed.get_world_size()
    return [a.tensor_split(num_devices)[rank] for a in arrays]


def run(train, params, X, y, num_devices, *rest, net=plain, **words):
    """Train in every process; returns the parameters of each."""
    if num_devices not in pipes:
        pipes[num_devices] = start(num_devices)
    for pipe in pipes[num_devices]:
        pipe.send((train, net, params, X, y, rest, words))
    answers = [pipe.recv() for pipe in pipes[num_devices]]
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


def start(num_devices):
    """Fork processes that have PyTorch imported already, and wait for work."""
    context, store = torch.multiprocessing.get_context("fork"), tempfile.mktemp()
    ends = [context.Pipe() for _ in range(num_devices)]
    for rank, (_, theirs) in enumerate(ends):
        how = (rank, num_devices, store, theirs)
        context.Process(target=work, args=how, daemon=True).start()
    return [ours for ours, _ in ends]


def work(rank, num_devices, store, pipe):
    """A process of the group."""
    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if BACKEND == "nccl" else torch.device("cpu")
    if BACKEND == "nccl":
        torch.cuda.set_device(device)
    distributed.init_process_group(
        BACKEND, init_method=f"file://{store}", rank=rank, world_size=num_devices
    )
    while True:
        train, make, params, X, y, rest, words = pipe.recv()
        net = make()
        with torch.no_grad():
            for p, value in zip(values(net), params):
                p.copy_(torch.tensor(value))
        net = net.to(device)
        X, y = torch.tensor(X, device=device), torch.tensor(y, device=device)
        try:
            train(net, X, y, *rest, **words)
            pipe.send([p.detach().cpu().numpy() for p in values(net)])
        except Exception as error:
            pipe.send(error)
