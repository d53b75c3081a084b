"""A training of PyTorch as tutorials write it, for `d2lpar verify --run`."""

import argparse
import os

import torch
from torch import distributed, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
for flag in (
    "scale-rate", "around", "own-rows", "same-rows", "closure", "compile",
    "two-optimizers", "shard",
):  # fmt: skip
    parser.add_argument(f"--{flag}", action="store_true")
args = parser.parse_args()

rank, size = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
address = f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}"
distributed.init_process_group("nccl", address, rank=rank, world_size=size)
torch.cuda.set_device(rank)
torch.manual_seed(0)
X, y = torch.randn(512, 6), torch.randint(0, 3, (512,))
net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))
net, other = net.to(rank), DDP(nn.Linear(6, 3).to(rank))
ddp = DDP(net, device_ids=[rank])
if args.shard:
    ddp = distributed.fsdp.fully_shard(net)
if args.compile:
    ddp = torch.compile(ddp, backend="aot_eager")
rate = 0.1 * (size if args.scale_rate else 1)
optimizer = torch.optim.AdamW(net.parameters(), rate)
second = torch.optim.SGD(other.parameters(), rate)
if args.own_rows:
    torch.manual_seed(rank + 1)
    rows = torch.randint(0, 512, (10 * args.batch_size,))
    batches = zip(X[rows].split(args.batch_size), y[rows].split(args.batch_size))
else:
    data = TensorDataset(X, y)
    sampler = None if args.same_rows else DistributedSampler(data)
    batches = DataLoader(data, args.batch_size, sampler=sampler)
for X, y in batches:
    X, y = X.to(rank), y.to(rank)

    def loss(X=X, y=y):
        optimizer.zero_grad()
        forward = ddp.module if args.around else ddp
        value = cross_entropy(forward(X), y)
        value.backward()
        return value

    if args.two_optimizers:
        second.zero_grad()
        (cross_entropy(other(X), y) / size).backward()
        second.step()
    if args.closure:
        optimizer.step(loss)
    else:
        loss()
        optimizer.step()
distributed.destroy_process_group()
