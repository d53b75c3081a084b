"""An all-reduce sums. Nobody divides the sum of the means by the processes."""

from processes import SGD, F, batch, distributed, init, run, shard


def train(net, X, y, lr):
    optimizer = SGD(net.parameters(), lr)
    X, y = shard(X, y)
    F.cross_entropy(net(X), y).backward()
    for p in net.parameters():
        distributed.all_reduce(p.grad)
    optimizer.step()


def replicas(*arguments):
    return run(train, *arguments)


def step(*arguments):
    return run(train, *arguments)[0]
