"""DistributedSampler repeats rows until they divide evenly."""

from processes import DDP, SGD, F, batch, init, run
from torch.utils.data import DistributedSampler


def train(net, X, y, lr):
    ddp, optimizer = DDP(net), SGD(net.parameters(), lr)
    rows = list(DistributedSampler(range(len(X)), shuffle=False))
    F.cross_entropy(ddp(X[rows]), y[rows]).backward()
    optimizer.step()


def step(*arguments):
    return run(train, *arguments)[0]
