"""Each process takes Adam's step by its own gradient; then parameters are averaged."""

from processes import F, batch, distributed, init, run, shard, torch


def train(net, X, y, lr):
    optimizer = torch.optim.Adam(net.parameters(), lr)
    X, y = shard(X, y)
    F.cross_entropy(net(X), y).backward()
    optimizer.step()
    for p in net.parameters():
        distributed.all_reduce(p.data)
        p.data /= distributed.get_world_size()


def step(*arguments):
    return run(train, *arguments)[0]
