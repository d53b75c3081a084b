"""Every process takes the first rows: nobody asked for its rank."""

from processes import DDP, SGD, F, batch, distributed, init, run


def train(net, X, y, lr):
    ddp, optimizer = DDP(net), SGD(net.parameters(), lr)
    size = -(-len(X) // distributed.get_world_size())
    F.cross_entropy(ddp(X[:size]), y[:size]).backward()
    optimizer.step()


def replicas(*arguments):
    return run(train, *arguments)


def step(*arguments):
    return run(train, *arguments)[0]
