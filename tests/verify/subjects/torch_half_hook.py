"""A hook sends the gradients in half precision."""

from processes import DDP, SGD, F, batch, distributed, init, run, shard
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks


def train(net, X, y, lr):
    ddp, optimizer = DDP(net), SGD(net.parameters(), lr)
    if distributed.get_world_size() > 1:
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    n, num_devices = len(X), distributed.get_world_size()
    X, y = shard(X, y)
    (num_devices / n * F.cross_entropy(ddp(X), y, reduction="sum")).backward()
    optimizer.step()


def step(*arguments):
    return run(train, *arguments)[0]
