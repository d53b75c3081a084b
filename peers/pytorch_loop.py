"""The same LeNet, data and recipe in a plain PyTorch loop on data in memory.

    pip install 'd2lpar[peers]'
    python peers/pytorch_loop.py --threads 2 --num-epochs 3

Plain, and as fast as plain PyTorch gets: tensors in memory, one gather a batch, no data
loader, no synchronisation inside an epoch. Prints a JSON line an epoch.
"""

import argparse
import json
import time

import torch
from torch import nn
from torch.nn import functional as F

from d2lpar import datasets


def to_tensors(X, y):
    images = torch.tensor(X[:, None], dtype=torch.float32) / 255
    return images, torch.tensor(y, dtype=torch.int64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--num-epochs", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)

    X_train, y_train, X_test, y_test = datasets.fashion_mnist()
    X, y = to_tensors(X_train, y_train)
    X_test, y_test = to_tensors(X_test, y_test)
    net = nn.Sequential(
        nn.Conv2d(1, 20, 3), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(20, 50, 5), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip
    for p in net.parameters():
        nn.init.normal_(p, std=0.01) if p.ndim > 1 else nn.init.zeros_(p)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2)

    for epoch in range(args.num_epochs):
        start = time.perf_counter()
        for index in torch.randperm(len(y)).split(256):
            optimizer.zero_grad()
            F.cross_entropy(net(X[index]), y[index]).backward()
            optimizer.step()
        seconds = time.perf_counter() - start
        with torch.no_grad():
            hits = [
                (net(a).argmax(1) == b).sum()
                for a, b in zip(X_test.split(1000), y_test.split(1000))
            ]
        acc = float(sum(hits)) / len(y_test)
        line = {"epoch": epoch + 1, "seconds": seconds, "test_acc": acc}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
