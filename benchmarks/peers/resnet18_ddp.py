"""d2l's ResNet-18 in PyTorch, one process per device (DistributedDataParallel).

    python benchmarks/peers/resnet18_ddp.py --channels 4 --n-train 512 --data sample
    python benchmarks/peers/resnet18_ddp.py --device cuda --num-devices 2

The network of chapter multiple_gpus_concise, whose batch normalisation takes the
statistics of one device's shard. cuDNN tries its algorithms first, as MXNet lets it.
The first process prints a JSON line per epoch. `benchmarks/resnet18.py` runs it.
"""

import time

import ddp
import job
import numpy as np
import pytorch_loop
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


class Residual(nn.Module):
    def __init__(self, inputs, channels, strides=1):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, channels, 3, strides, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
        )
        self.shortcut = nn.Sequential()  # empty: the input itself
        if strides > 1:
            self.shortcut.append(nn.Conv2d(inputs, channels, 1, strides))

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x))


def resnet18(channels, params, device):
    """The network with parameters N(0, 0.01) and biases 0, or with `params`."""
    net = nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()
    )
    inputs = channels
    for stage in range(4):
        outputs = channels * 2**stage
        net.append(Residual(inputs, outputs, 1 if stage == 0 else 2))
        net.append(Residual(outputs, outputs))
        inputs = outputs
    net.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10)])
    with torch.no_grad():
        for k, (name, p) in enumerate(net.named_parameters()):
            if params is not None:
                p.copy_(torch.from_numpy(params[k]))
            elif p.ndim > 1:
                p.normal_(std=0.01)
            elif name.endswith("bias"):
                p.zero_()
    return net.to(device)


def replica(channels, params, device, dtype=torch.float32):
    net = resnet18(channels, params, device).to(dtype)
    ids = [device] if device.index is not None else []
    return DistributedDataParallel(net, device_ids=ids)


def train_batch(net, optimizer, X, y, index):
    """One step on this process's shard of the batch `index`; its summed loss."""
    shard = index.tensor_split(dist.get_world_size())[dist.get_rank()]
    return ddp.train_batch(net, optimizer, X, y, shard, len(index))


def train(args, device):
    """Train in this process, one of several."""
    torch.backends.cudnn.benchmark = True
    X, y, X_test, y_test = pytorch_loop.data_on(device, args)
    torch.manual_seed(args.seed)
    if args.check:
        first = job.first_steps_of_resnet(args.check, dist.get_world_size())
        channels = len(first.check[0])  # a narrow network shows the same
        net = replica(channels, first.check, device, torch.float64)
        optimizer, losses = pytorch_loop.sgd(net, first.lr), []
        images = X.double()
        for index in torch.tensor(first.index, device=device):
            loss = train_batch(net, optimizer, images, y, index)
            dist.all_reduce(loss)
            losses.append(float(loss) / len(index))
        ddp.refuse(job.disagreement(losses, first, job.RELATIVE_RESNET), device)
    net = replica(args.channels, None, device)
    optimizer = pytorch_loop.sgd(net, args.lr)
    size = args.global_batch_size
    for epoch in range(args.num_epochs):
        ddp.wait(device)
        start = time.perf_counter()
        rng = np.random.default_rng([args.seed, epoch + 1])  # the same in all processes
        order = torch.from_numpy(rng.permutation(len(y))).to(device)
        for k in range(0, len(y) - size + 1, size):
            train_batch(net, optimizer, X, y, order[k : k + size])
        ddp.wait(device)
        seconds = time.perf_counter() - start
        net.eval()
        acc = ddp.evaluate_accuracy(net, X_test, y_test)
        net.train()
        if dist.get_rank() == 0:
            done = len(y) // size * size
            job.print_epoch(epoch + 1, seconds, done, acc, torch=torch.__version__)


if __name__ == "__main__":
    args = job.parse(job.resnet_parser(__doc__))
    ddp.start(args, train)
