"""DDP with Adam."""

from processes import DDP, F, batch, distributed, init, run, shard, torch


def train(net, X, y, lr, steps):
    ddp, optimizer = DDP(net), torch.optim.Adam(net.parameters(), lr)
    n, num_devices = len(X), distributed.get_world_size()
    X, y = shard(X, y)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(ddp(X), y, reduction="sum")
        (num_devices / n * loss).backward()
        optimizer.step()


def step(params, X, y, num_devices, lr, steps=1):
    return run(train, params, X, y, num_devices, lr, steps=steps)[0]
