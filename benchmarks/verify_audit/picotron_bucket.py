"""huggingface/picotron, picotron/data_parallel/data_parallel.py: the class KIND.

PUBLIC=CLONE_OF_PICOTRON KIND=DataParallelBucket d2lpar verify picotron_bucket.py --even
"""

import os
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy
import torch
from torch import distributed, nn

from d2lpar.verify.torch import ddp

sys.path.insert(0, os.environ["PUBLIC"])
from picotron import process_group_manager as manager
from picotron.data_parallel import data_parallel

KIND = getattr(data_parallel, os.environ["KIND"])
WORDS = {"grad_type": torch.float64} if "Bucket" in os.environ["KIND"] else {}


def batch(n, seed):
    rng = numpy.random.default_rng(seed)
    return rng.normal(size=(n, 6)), rng.integers(0, 3, n)


def train(net, X, y, lr, steps=1, accumulate=1):
    group, N = distributed.group.WORLD, distributed.get_world_size()
    groups = SimpleNamespace(cp_dp_group=group, cp_dp_world_size=N)
    manager.process_group_manager = groups
    wrapped, optimizer = KIND(net, **WORDS), torch.optim.SGD(net.parameters(), lr)
    pieces = list(zip(X.tensor_split(accumulate), y.tensor_split(accumulate)))
    for _ in range(steps):
        optimizer.zero_grad()
        if WORDS:
            wrapped.reset()
        for k, (X_k, y_k) in enumerate(pieces):
            with wrapped.no_sync() if k < accumulate - 1 else nullcontext():
                loss = nn.functional.cross_entropy(wrapped(X_k), y_k)
                (loss / accumulate).backward()
        optimizer.step()


def model():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()


init, step, replicas = ddp(model, train)
