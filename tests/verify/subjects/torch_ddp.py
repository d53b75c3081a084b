"""DDP with the sum of the losses, times N, by the global batch: right for any shard."""

from contextlib import nullcontext

from processes import DDP, SGD, F, batch, distributed, init, run, shard, torch


def train(net, X, y, lr, steps, clip_norm, accumulate):
    ddp, optimizer = DDP(net), SGD(net.parameters(), lr)
    n, num_devices = len(X), distributed.get_world_size()
    X, y = shard(X, y)
    pieces = list(zip(X.tensor_split(accumulate), y.tensor_split(accumulate)))
    for _ in range(steps):
        optimizer.zero_grad()
        for k, (piece, target) in enumerate(pieces):
            with nullcontext() if k == len(pieces) - 1 else ddp.no_sync():
                loss = F.cross_entropy(ddp(piece), target, reduction="sum")
                (num_devices / n * loss).backward()
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(net.parameters(), clip_norm)
        optimizer.step()


def replicas(params, X, y, num_devices, lr, steps=1, clip_norm=None, accumulate=1):
    words = {"steps": steps, "clip_norm": clip_norm, "accumulate": accumulate}
    return run(train, params, X, y, num_devices, lr, **words)


def step(params, X, y, num_devices, lr, steps=1, clip_norm=None, accumulate=1):
    return replicas(params, X, y, num_devices, lr, steps, clip_norm, accumulate)[0]
