"""A DistributedDataParallel communication hook: gradients travel in 16 bits.

    torchrun --nproc-per-node 2 teaching/frameworks/pytorch_hook.py

Prints the mean loss of each step, and at the end the bytes that a process has handed to
all-reduces. The buckets are small, so that several of them overlap with the backward
pass.
"""

import start
import torch
from torch import distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

distributed.init_process_group("gloo")  # or "nccl", with a GPU for each process
rank, num_devices = distributed.get_rank(), distributed.get_world_size()
num_bytes = 0


def in_16_bits(state, bucket):
    """Average a bucket over the processes in half precision.

    DDP calls this when the last gradient of the bucket is ready, and goes on with the
    backward pass while the bucket travels.
    """
    global num_bytes
    small = bucket.buffer().half() / num_devices
    num_bytes += small.nbytes
    work = distributed.all_reduce(small, async_op=True).get_future()
    return work.then(lambda done: bucket.buffer().copy_(done.value()[0]))


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
    for p, value in zip(net.parameters(), start.params()):
        p.copy_(torch.tensor(value.T if value.ndim == 2 else value))
ddp = DistributedDataParallel(net, bucket_cap_mb=0.1)
ddp.register_comm_hook(None, in_16_bits)
optimizer = torch.optim.SGD(ddp.parameters(), lr=start.LR)
for X, y in start.batches():
    X_shard, y_shard = (torch.tensor(a).tensor_split(num_devices)[rank] for a in (X, y))
    optimizer.zero_grad()
    loss = F.cross_entropy(ddp(X_shard), y_shard, reduction="sum")
    (num_devices / len(X) * loss).backward()
    optimizer.step()
    loss = loss.detach()
    distributed.all_reduce(loss)
    if rank == 0:
        print(loss.item() / len(X))
if rank == 0:
    print(f"{num_bytes} bytes")
distributed.destroy_process_group()
