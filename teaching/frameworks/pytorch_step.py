"""Data parallelism in PyTorch: two processes, each with a device.

    torchrun --nproc-per-node 2 teaching/frameworks/pytorch_step.py

Prints the mean loss of each step. `DistributedDataParallel` does what `allreduce` does
here, bucket by bucket, while backward is still computing.
"""

import start
import torch
from torch import distributed
from torch.nn import functional as F

distributed.init_process_group("gloo")  # or "nccl", with a GPU for each process
rank, num_devices = distributed.get_rank(), distributed.get_world_size()
device = torch.device("cpu")  # or ("cuda", rank)


def lenet(X, params):
    W1, b1, W2, b2, W3, b3, W4, b4 = params
    h = F.avg_pool2d(F.relu(F.conv2d(X, W1, b1)), 2)
    h = F.avg_pool2d(F.relu(F.conv2d(h, W2, b2)), 2)
    h = F.relu(h.flatten(1) @ W3 + b3)
    return h @ W4 + b4


def get_params(params):
    return [torch.tensor(p, device=device, requires_grad=True) for p in params]


def allreduce(array):
    distributed.all_reduce(array)  # the sum over all processes, in place


def train_batch(X, y, params, lr):
    rows = slice(rank, None, num_devices)  # this process's shard
    X_shard, y_shard = torch.tensor(X[rows]), torch.tensor(y[rows])
    losses = F.cross_entropy(
        lenet(X_shard.to(device), params), y_shard.to(device), reduction="sum"
    )
    losses.backward()
    with torch.no_grad():
        for p in params:
            allreduce(p.grad)
            p -= lr / len(X) * p.grad
            p.grad = None
    total = losses.detach()
    allreduce(total)
    return total.item() / len(X)


params = get_params(start.params())
for X, y in start.batches():
    mean = train_batch(X, y, params, start.LR)
    if rank == 0:
        print(mean)
distributed.destroy_process_group()
