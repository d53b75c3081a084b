"""d2l-ai/d2l-en, chapter_computational-performance/multiple-gpus.md: PyTorch's tab.

PUBLIC=CLONE_OF_D2L_EN d2lpar verify d2l_pytorch.py --batch 16
"""

import os
import re
from types import SimpleNamespace

import numpy
import torch
from torch import nn
from torch.nn import functional

path = "chapter_computational-performance/multiple-gpus.md"
with open(os.path.join(os.environ["PUBLIC"], path), encoding="utf-8") as file:
    cells = re.findall(r"#@tab pytorch\n(.*?)```", file.read(), re.S)
definitions = [cell for cell in cells if re.search("^def ", cell, re.M)]
nn.parallel.scatter = lambda a, devices: a.chunk(len(devices))  # it is for GPUs only
sgd = lambda params, lr, n: torch.optim.SGD(params, lr / n).step()  # noqa: E731
public = {"torch": torch, "nn": nn, "F": functional, "d2l": SimpleNamespace(sgd=sgd)}
exec("\n".join(definitions), public)


def init(seed):
    rng = numpy.random.default_rng(seed)
    return [rng.normal(0, 0.1, p.shape) for p in public["params"]]


def batch(n, seed):
    rng = numpy.random.default_rng(seed)
    return rng.random((n, 1, 28, 28)), rng.integers(0, 10, n)


def step(params, X, y, num_devices, lr):
    devices = [torch.device("cpu")] * num_devices
    own = [[torch.tensor(p).requires_grad_() for p in params] for _ in devices]
    public["train_batch"](torch.tensor(X), torch.tensor(y), own, devices, lr)
    return [p.detach().numpy() for p in own[0]]
