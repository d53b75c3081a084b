"""Data parallelism in PyTorch, concise: DistributedDataParallel (DDP).

    torchrun --nproc-per-node 2 teaching/frameworks/pytorch_ddp.py

Prints the mean loss of each step.
"""

import start
import torch
from torch import distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

distributed.init_process_group("gloo")  # or "nccl", with a GPU for each process
rank, num_devices = distributed.get_rank(), distributed.get_world_size()
device = torch.device("cpu")  # or ("cuda", rank)


def lenet(params):
    net = nn.Sequential(
        nn.Conv2d(1, 20, kernel_size=3),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(20, 50, kernel_size=5),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(800, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )
    with torch.no_grad():
        for p, value in zip(net.parameters(), params):
            p.copy_(torch.tensor(value.T if value.ndim == 2 else value))
    return net.to(device)


def split_batch(X, y):
    """This process's shard of the batch."""
    X_shard, y_shard = (a.tensor_split(num_devices)[rank] for a in (X, y))
    return X_shard.to(device), y_shard.to(device)


def train_batch(X, y, net, optimizer):
    X_shard, y_shard = split_batch(X, y)
    loss = F.cross_entropy(net(X_shard), y_shard, reduction="sum")
    optimizer.zero_grad()
    # DDP takes the mean of the processes' gradients. Times num_devices it is the sum.
    (num_devices / len(X) * loss).backward()
    optimizer.step()
    return loss.detach()


def train(net):
    """Print the mean loss of each batch."""
    optimizer = torch.optim.SGD(net.parameters(), lr=start.LR)
    for X, y in start.batches():
        loss = train_batch(torch.tensor(X), torch.tensor(y), net, optimizer)
        distributed.all_reduce(loss)
        if rank == 0:
            print(loss.item() / len(X))


if __name__ == "__main__":
    train(DistributedDataParallel(lenet(start.params())))
    distributed.destroy_process_group()
