"""DDP wraps the body only; the head's gradients stay on each process."""

from processes import DDP, SGD, F, batch, distributed, init, run, shard


def train(net, X, y, lr):
    body, head = net[:2], net[2]
    body, optimizer = DDP(body), SGD(net.parameters(), lr)
    n, num_devices = len(X), distributed.get_world_size()
    X, y = shard(X, y)
    loss = F.cross_entropy(head(body(X)), y, reduction="sum")
    (num_devices / n * loss).backward()
    optimizer.step()


def step(*arguments):
    return run(train, *arguments)[0]
