"""DDP with a tied weight, a frozen layer, and one that no row uses."""

import functools

import processes
from processes import DDP, SGD, F, batch, distributed, nn, shard, torch


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.frozen, self.unused = nn.Linear(6, 3), nn.Linear(6, 3)
        self.second.weight = self.first.weight
        self.frozen.requires_grad_(False)

    def forward(self, X):
        return self.frozen(torch.tanh(self.second(torch.tanh(self.first(X)))))


init = functools.partial(processes.init, net=Net)


def train(net, X, y, lr):
    ddp = DDP(net, find_unused_parameters=True)
    optimizer = SGD(net.parameters(), lr)
    n, num_devices = len(X), distributed.get_world_size()
    X, y = shard(X, y)
    (num_devices / n * F.cross_entropy(ddp(X), y, reduction="sum")).backward()
    optimizer.step()


def step(*arguments):
    return processes.run(train, *arguments, net=Net)[0]
