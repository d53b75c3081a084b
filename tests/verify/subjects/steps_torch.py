"""Steps of PyTorch on several processes, by the variable D2LPAR_PROGRAM.

Each program is right, or has one mistake; evidence.md says which.
"""

import os
from contextlib import nullcontext

import numpy
import torch
from torch import distributed, nn
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DistributedSampler

from d2lpar.verify.torch import ddp

PROGRAM = os.environ.get("D2LPAR_PROGRAM", "ddp")
EVEN = PROGRAM in ("sampler", "momentum_of_one")
HAS_TOKENS = PROGRAM in ("tokens", "tokens_of_each")
OWN_MEANS = PROGRAM in ("mean_of_means", "tokens_of_each")


def model():
    noise = [nn.Dropout(0.5)] if PROGRAM == "dropout" else []
    norm = [nn.BatchNorm1d(8)] if PROGRAM == "batch_norm" else []
    return nn.Sequential(
        nn.Linear(6, 8, not norm), *norm, nn.ReLU(), *noise, nn.Linear(8, 3)
    )


def batch(n, seed):
    rng = numpy.random.default_rng(seed)
    shape = (n, 5) if HAS_TOKENS else (n,)
    X, y = rng.normal(size=(*shape, 6)).astype("float32"), rng.integers(0, 3, shape)
    if HAS_TOKENS:  # -100 is ignored; each row has a token
        y[..., 1:][rng.random((n, 4)) < 0.5] = -100
    return X, y


def own_rows(n, rank, N):
    if "sampler" in PROGRAM:
        sampler = DistributedSampler(range(n), N, rank)
        return torch.tensor(list(sampler), dtype=torch.long)
    return torch.arange(n).tensor_split(N)[rank]


def loss_of(scores, y, valid, N, share):
    """The loss of a piece, which is right if DDP averages over the processes."""
    scores, y = scores.flatten(0, -2), y.flatten()
    if OWN_MEANS or "sampler" in PROGRAM:
        return cross_entropy(scores, y) * share
    total = cross_entropy(scores, y, reduction="sum")
    return total / valid if PROGRAM == "sum_under_ddp" else N / valid * total


def clip(net, clip_norm):
    if clip_norm is not None:
        nn.utils.clip_grad_norm_(net.parameters(), clip_norm)


def train(net, X, y, lr, steps=1, clip_norm=None, accumulate=1):
    rank, N, n = distributed.get_rank(), distributed.get_world_size(), len(X)
    rows = own_rows(n, rank, N)
    if PROGRAM == "idle_process" and len(rows) == 0:
        return
    wrapped = net
    if PROGRAM == "fsdp2":
        fully_shard(net)
    else:
        wrapped = DDP(net)
    momentum = 0.9 * (PROGRAM == "momentum_of_one" and rank == 0)
    optimizer = torch.optim.SGD(net.parameters(), lr, momentum)
    pieces = rows.tensor_split(accumulate)
    if PROGRAM == "join":
        with Join([wrapped]):  # the parameters are sent around at its end
            for _ in range(steps if len(rows) else 0):
                optimizer.zero_grad()
                loss_of(wrapped(X[rows]), y[rows], n, N, 1).backward()
                clip(net, clip_norm)
                optimizer.step()
        return
    for _ in range(steps):
        optimizer.zero_grad()
        for k, piece in enumerate(pieces):
            waits = k < len(pieces) - 1
            if PROGRAM == "pieces_not_summed":
                waits = k == 1
            if PROGRAM == "fsdp2":
                wrapped.set_requires_gradient_sync(not waits)
            with (
                wrapped.no_sync()
                if waits and isinstance(wrapped, DDP)
                else nullcontext(),
                torch.autocast(X.device.type, torch.bfloat16, PROGRAM == "autocast"),
            ):
                forward = wrapped.module if PROGRAM == "around_ddp" else wrapped
                scores = forward(X[piece]).float()
                valid = (y != -100).sum().item()
                loss = loss_of(scores, y[piece], valid, N, 1 / len(pieces))
                loss.backward()
        clip(net, clip_norm)
        optimizer.step()


init, step, replicas = ddp(model, train, whole=True)
