"""A training of PyTorch as tutorials write it, for `d2lpar verify --run`."""

import argparse
import os

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument(
    "--scale-rate", action="store_true", help="plant: lr times processes"
)
parser.add_argument("--around", action="store_true", help="plant: DDP is not called")
parser.add_argument(
    "--own-rows", action="store_true", help="each process draws its own"
)
parser.add_argument("--same-rows", action="store_true", help="plant: no sampler")
parser.add_argument(
    "--closure", action="store_true", help="gradients are computed in the step"
)
parser.add_argument("--compile", action="store_true")
args = parser.parse_args()

rank, size = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
address = f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}"
distributed.init_process_group("nccl", address, rank=rank, world_size=size)
torch.cuda.set_device(rank)
torch.manual_seed(0)
X, y = torch.randn(512, 6), torch.randint(0, 3, (512,))
net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))
ddp = DDP(net.to(rank), device_ids=[rank])
if args.compile:
    ddp = torch.compile(ddp, backend="aot_eager")
optimizer = torch.optim.AdamW(ddp.parameters(), 0.1 * (size if args.scale_rate else 1))
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
        scores = (ddp.module if args.around else ddp)(X)
        value = nn.functional.cross_entropy(scores, y)
        value.backward()
        return value

    if args.closure:
        optimizer.step(loss)
    else:
        loss()
        optimizer.step()
distributed.destroy_process_group()
