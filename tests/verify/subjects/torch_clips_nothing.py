"""clip_grad_norm_ gets gradients, looks for their gradients, and finds none."""

from processes import DDP, SGD, F, batch, distributed, init, run, shard, torch


def train(net, X, y, lr, clip_norm):
    ddp, optimizer = DDP(net), SGD(net.parameters(), lr)
    n, num_devices = len(X), distributed.get_world_size()
    X, y = shard(X, y)
    (num_devices / n * F.cross_entropy(ddp(X), y, reduction="sum")).backward()
    if clip_norm is not None:
        grads = [p.grad for p in net.parameters()]
        torch.nn.utils.clip_grad_norm_(grads, clip_norm)
    optimizer.step()


def step(params, X, y, num_devices, lr, clip_norm=None):
    return run(train, params, X, y, num_devices, lr, clip_norm=clip_norm)[0]
