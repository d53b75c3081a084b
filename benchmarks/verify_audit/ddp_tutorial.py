"""pytorch/examples, distributed/ddp-tutorial-series/multigpu.py: `Trainer._run_batch`.

    PUBLIC=CLONE_OF_PYTORCH_EXAMPLES d2lpar verify ddp_tutorial.py --even

As it is, the tutorial's cross_entropy has one class, so that nothing moves. With
LOSS=mse_loss it has another.
"""

import os
import sys

import numpy
import torch

from d2lpar.verify.torch import ddp

folder = os.path.join(os.environ["PUBLIC"], "distributed", "ddp-tutorial-series")
sys.path.insert(0, folder)
torch.cuda.set_device = lambda device: None  # no GPU is needed
import multigpu

multigpu.DDP = lambda net, device_ids: torch.nn.parallel.DistributedDataParallel(net)
if "LOSS" in os.environ:
    multigpu.F.cross_entropy = getattr(multigpu.F, os.environ["LOSS"])


def batch(n, seed):
    rng = numpy.random.default_rng(seed)
    return rng.random((n, 20)), rng.random((n, 1))


def train(net, X, y, lr, steps=1):
    optimizer = torch.optim.SGD(net.parameters(), lr)
    trainer = multigpu.Trainer(net, None, optimizer, "cpu", 1)
    for _ in range(steps):
        trainer._run_batch(X, y)


init, step, replicas = ddp(lambda: torch.nn.Linear(20, 1).double(), train)
