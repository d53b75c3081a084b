"""pytorch/examples, distributed/minGPT-ddp/mingpt/trainer.py: `Trainer._run_batch`.

PUBLIC=CLONE_OF_PYTORCH_EXAMPLES d2lpar verify mingpt_ddp.py --even
"""

import os
import sys
from types import ModuleType, SimpleNamespace

import numpy
import torch
from torch.nn.parallel import DistributedDataParallel

from d2lpar.verify.torch import ddp

for name in ("boto3", "fsspec"):  # for snapshots, which are not stored here
    sys.modules.setdefault(name, ModuleType(name))
folder = os.path.join(os.environ["PUBLIC"], "distributed", "minGPT-ddp", "mingpt")
sys.path.insert(0, folder)
from model import GPT, GPTConfig
from trainer import Trainer

GPT_CONFIG = GPTConfig("tiny", 1, 2, 16, 32, 8, 0, 0, 0)  # the last: dropout


def batch(n, seed):
    rng = numpy.random.default_rng(seed)
    return rng.integers(0, 32, (n, 8)), rng.integers(0, 32, (n, 8))


def train(net, X, y, lr, steps=1, clip_norm=float("inf")):
    trainer = object.__new__(Trainer)  # its __init__ wants an accelerator
    trainer.model, trainer.device_type = DistributedDataParallel(net), "cpu"
    trainer.optimizer = torch.optim.SGD(net.parameters(), lr)
    trainer.config = SimpleNamespace(use_amp=False, grad_norm_clip=clip_norm)
    for _ in range(steps):
        trainer._run_batch(X, y)


init, step, replicas = ddp(lambda: GPT(GPT_CONFIG).double(), train)
