"""zero_grad at the beginning of each piece drops the pieces before it."""

from processes import DDP, SGD, F, batch, distributed, init, run, shard


def train(net, X, y, lr, accumulate):
    ddp, optimizer = DDP(net), SGD(net.parameters(), lr)
    n, num_devices = len(X), distributed.get_world_size()
    X, y = shard(X, y)
    for piece, target in zip(X.tensor_split(accumulate), y.tensor_split(accumulate)):
        optimizer.zero_grad()
        loss = F.cross_entropy(ddp(piece), target, reduction="sum")
        (num_devices / n * loss).backward()
    optimizer.step()


def step(params, X, y, num_devices, lr, accumulate=1):
    return run(train, params, X, y, num_devices, lr, accumulate=accumulate)[0]
