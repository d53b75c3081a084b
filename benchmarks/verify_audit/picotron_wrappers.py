"""huggingface/picotron: DataParallelBucket, or with WRAPPER=DataParallelNaive that one.

PUBLIC=CLONE_OF_PICOTRON d2lpar verify picotron_wrappers.py --even
"""

import os
import sys
from contextlib import nullcontext as now

import numpy
from torch import distributed, nn, optim

from d2lpar.verify.torch import ddp

sys.path.insert(0, os.environ["PUBLIC"])
import picotron.process_group_manager as pgm
from picotron.data_parallel import data_parallel

WRAPPER = getattr(data_parallel, os.environ.get("WRAPPER", "DataParallelBucket"))


def batch(n, seed):
    rng = numpy.random.default_rng(seed)
    return rng.normal(size=(n, 6)).astype("float32"), rng.integers(0, 3, n)


def train(net, X, y, lr, steps=1, accumulate=1):
    if not hasattr(pgm, "process_group_manager"):
        pgm.setup_process_group_manager(1, 1, 1, distributed.get_world_size())
    wrapped, optimizer = WRAPPER(net), optim.SGD(net.parameters(), lr)
    for _ in range(steps):
        for k, (own, to) in enumerate(zip(X.chunk(accumulate), y.chunk(accumulate))):
            with wrapped.no_sync() if k < accumulate - 1 else now():
                (nn.functional.cross_entropy(wrapped(own), to) / accumulate).backward()
        optimizer.step()
        getattr(wrapped, "reset", optimizer.zero_grad)()


init, step, replicas = ddp(
    lambda: nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)), train
)
