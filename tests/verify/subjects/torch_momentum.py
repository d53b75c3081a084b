"""DDP with momentum and weight decay: a state between the steps of a call."""

from processes import DDP, SGD, F, batch, distributed, init, run, shard


def train(net, X, y, lr, steps):
    ddp = DDP(net)
    optimizer = SGD(net.parameters(), lr, momentum=0.9, weight_decay=0.01)
    n, num_devices = len(X), distributed.get_world_size()
    X, y = shard(X, y)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(ddp(X), y, reduction="sum")
        (num_devices / n * loss).backward()
        optimizer.step()


def step(params, X, y, num_devices, lr, steps=1):
    return run(train, params, X, y, num_devices, lr, steps=steps)[0]
