"""DDP with dropout: each process draws its own masks, and no two calls are equal."""

import processes
from processes import DDP, SGD, F, batch, distributed, init, nn, shard


def make():
    return nn.Sequential(processes.plain()[:2], nn.Dropout(0.5), nn.Linear(8, 3))


def train(net, X, y, lr):
    ddp, optimizer = DDP(net), SGD(net.parameters(), lr)
    n, num_devices = len(X), distributed.get_world_size()
    X, y = shard(X, y)
    (num_devices / n * F.cross_entropy(ddp(X), y, reduction="sum")).backward()
    optimizer.step()


def replicas(*arguments):
    return processes.run(train, *arguments, net=make)


def step(*arguments):
    return replicas(*arguments)[0]
