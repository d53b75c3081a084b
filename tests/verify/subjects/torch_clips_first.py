"""Each process clips the gradient of its own shard, then they are averaged."""

from processes import SGD, F, batch, distributed, init, run, shard, torch


def train(net, X, y, lr, clip_norm):
    optimizer = SGD(net.parameters(), lr)
    n = len(X)
    X, y = shard(X, y)
    F.cross_entropy(net(X), y).backward()
    if clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(net.parameters(), clip_norm)
    for p in net.parameters():
        p.grad *= len(X) / n
        distributed.all_reduce(p.grad)
    optimizer.step()


def step(params, X, y, num_devices, lr, clip_norm=None):
    return run(train, params, X, y, num_devices, lr, clip_norm=clip_norm)[0]
