"""The all-reduce works on a copy, and the optimizer on the gradient."""

from processes import SGD, F, batch, distributed, init, run, shard


def train(net, X, y, lr):
    optimizer = SGD(net.parameters(), lr)
    X, y = shard(X, y)
    F.cross_entropy(net(X), y).backward()
    for p in net.parameters():
        total = p.grad.clone()
        distributed.all_reduce(total)
        p.grad /= distributed.get_world_size()
    optimizer.step()


def step(*arguments):
    return run(train, *arguments)[0]
