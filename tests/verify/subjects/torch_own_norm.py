"""Each process clips the sum by the norm of its own part of it."""

from processes import SGD, F, batch, distributed, init, run, shard


def train(net, X, y, lr, clip_norm):
    optimizer = SGD(net.parameters(), lr)
    n = len(X)
    X, y = shard(X, y)
    (F.cross_entropy(net(X), y, reduction="sum") / n).backward()
    norm = sum((p.grad**2).sum() for p in net.parameters()).sqrt()
    for p in net.parameters():
        distributed.all_reduce(p.grad)
        if clip_norm is not None:
            p.grad *= (clip_norm / norm).clamp(max=1)
    optimizer.step()


def step(params, X, y, num_devices, lr, clip_norm=None):
    return run(train, params, X, y, num_devices, lr, clip_norm=clip_norm)[0]
