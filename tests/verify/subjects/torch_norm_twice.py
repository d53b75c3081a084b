"""DDP has summed the gradient, and its squared norm is summed over processes again."""

from processes import DDP, SGD, F, batch, distributed, init, run, shard


def train(net, X, y, lr, clip_norm):
    ddp, optimizer = DDP(net), SGD(net.parameters(), lr)
    n, num_devices = len(X), distributed.get_world_size()
    X, y = shard(X, y)
    (num_devices / n * F.cross_entropy(ddp(X), y, reduction="sum")).backward()
    if clip_norm is not None:
        square = sum((p.grad**2).sum() for p in net.parameters())
        distributed.all_reduce(square)
        for p in net.parameters():
            p.grad *= (clip_norm / square.sqrt()).clamp(max=1)
    optimizer.step()


def step(params, X, y, num_devices, lr, clip_norm=None):
    return run(train, params, X, y, num_devices, lr, clip_norm=clip_norm)[0]
