"""A process without rows returns early, and the others wait for it."""

from processes import SGD, F, batch, distributed, init, run, shard


def train(net, X, y, lr):
    optimizer = SGD(net.parameters(), lr)
    n = len(X)
    X, y = shard(X, y)
    if len(X) == 0:
        return
    F.cross_entropy(net(X), y, reduction="sum").backward()
    for p in net.parameters():
        distributed.all_reduce(p.grad)
        p.grad /= n
    optimizer.step()


def step(*arguments):
    return run(train, *arguments)[0]
