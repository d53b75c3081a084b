"""pytorch/examples, imagenet/main.py: `train`, with a small network under DDP.

PUBLIC=CLONE_OF_PYTORCH_EXAMPLES d2lpar verify imagenet.py --even
"""

import os
import sys
from types import ModuleType, SimpleNamespace

import numpy
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from d2lpar.verify.torch import ddp

for name in ("", ".datasets", ".models", ".transforms"):  # which `train` does not use
    sys.modules.setdefault("torchvision" + name, ModuleType("torchvision" + name))
sys.path.insert(0, os.path.join(os.environ["PUBLIC"], "imagenet"))
import main

ARGS = SimpleNamespace(no_accel=True, print_freq=1000)


def batch(n, seed):
    rng = numpy.random.default_rng(seed)
    return rng.normal(size=(n, 3, 4, 4)), rng.integers(0, 10, n)


def train(net, X, y, lr, steps=1):
    optimizer = torch.optim.SGD(net.parameters(), lr)
    wrapped, loss = DistributedDataParallel(net), nn.CrossEntropyLoss()
    main.train([(X, y)] * steps, wrapped, loss, optimizer, 0, torch.device("cpu"), ARGS)


def model():
    layers = nn.Flatten(), nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, 10)
    return nn.Sequential(*layers).double()


init, step, replicas = ddp(model, train)
