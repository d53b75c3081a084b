"""Data parallelism in PyTorch from scratch: two processes, each with a device.

    torchrun --nproc-per-node 2 teaching/frameworks/pytorch_step.py

Prints the mean loss of each step.
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


def split_batch(X, y):
    """This process's shard of the batch."""
    X_shard, y_shard = (a.tensor_split(num_devices)[rank] for a in (X, y))
    return X_shard.to(device), y_shard.to(device)


def train_batch(X, y, params, lr):
    X_shard, y_shard = split_batch(X, y)
    loss = F.cross_entropy(lenet(X_shard, params), y_shard, reduction="sum")
    loss.backward()
    with torch.no_grad():
        for p in params:
            allreduce(p.grad)
            p -= lr / len(X) * p.grad
            p.grad = None  # or the next backward pass would add to it
    return loss.detach()


params = get_params(start.params())
for X, y in start.batches():
    loss = train_batch(torch.tensor(X), torch.tensor(y), params, start.LR)
    allreduce(loss)
    if rank == 0:
        print(loss.item() / len(X))
distributed.destroy_process_group()
