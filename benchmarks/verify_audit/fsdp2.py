"""pytorch/examples, distributed/FSDP2/model.py: its Transformer, by fully_shard.

PUBLIC=CLONE_OF_PYTORCH_EXAMPLES d2lpar verify fsdp2.py --even
"""

import os
import sys

import numpy
import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

from d2lpar.verify.torch import ddp

sys.path.insert(0, os.path.join(os.environ["PUBLIC"], "distributed", "FSDP2"))
from model import ModelArgs, Transformer

ARGS = ModelArgs(1, 32, 8, 16, 2, 0.0)  # layers, vocabulary, length, width, heads


def batch(n, seed):
    rng = numpy.random.default_rng(seed)
    return rng.integers(0, 32, (n, 8)), rng.integers(0, 32, (n, 8))


def train(net, X, y, lr, steps=1, clip_norm=None):
    for layer in net.layers:
        fully_shard(layer)
    fully_shard(net)
    optimizer = torch.optim.SGD(net.parameters(), lr)
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(net(X).flatten(0, 1), y.flatten()).backward()
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(net.parameters(), clip_norm)
        optimizer.step()


init, step, replicas = ddp(lambda: Transformer(ARGS).double(), train)
