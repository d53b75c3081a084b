"""d2l's PyTorch tab of "Training on Multiple GPUs", as the book prints it.

    pip install -e '.[peers]'
    python benchmarks/peers/d2l_pytorch.py --threads 2 --num-epochs 3

The functions are copied from that section of d2l 1.0.3 and from the earlier sections
that define what it calls (`d2l.sgd`, `d2l.load_data_fashion_mnist`, ...). They keep the
book's transforms and its four worker processes, and are not tuned. We changed two
things: the files are read from disk instead of being downloaded, and the clock waits
for every GPU, not only for the current one. Needs torchvision, but not d2l. Prints a
JSON line per epoch.
"""

import time

import job
import torch
import torchvision
from torch import nn
from torch.nn import functional as F
from torchvision import transforms


class FashionMNISTOnDisk(torchvision.datasets.FashionMNIST):
    """torchvision's data set, filled with the images that d2lpar found and verified."""

    images = None  # set by main

    def __init__(self, root, train, transform, download):
        torchvision.datasets.VisionDataset.__init__(self, root, transform=transform)
        X_train, y_train, X_test, y_test = self.images
        X, y = (X_train, y_train) if train else (X_test, y_test)
        self.train, self.data = train, torch.tensor(X)
        self.targets = torch.tensor(y, dtype=torch.int64)


torchvision.datasets.FashionMNIST = FashionMNISTOnDisk


# Sections 23.8, 3.6, 6.7 and 7.6 of the book.
def get_dataloader_workers():
    return 4


def load_data_fashion_mnist(batch_size, resize=None):
    trans = [transforms.ToTensor()]
    if resize:
        trans.insert(0, transforms.Resize(resize))
    trans = transforms.Compose(trans)
    mnist_train = torchvision.datasets.FashionMNIST(
        root="../data", train=True, transform=trans, download=True
    )
    mnist_test = torchvision.datasets.FashionMNIST(
        root="../data", train=False, transform=trans, download=True
    )
    return (
        torch.utils.data.DataLoader(
            mnist_train, batch_size, shuffle=True, num_workers=get_dataloader_workers()
        ),
        torch.utils.data.DataLoader(
            mnist_test, batch_size, shuffle=False, num_workers=get_dataloader_workers()
        ),
    )


def sgd(params, lr, batch_size):
    with torch.no_grad():
        for param in params:
            param -= lr * param.grad / batch_size
            param.grad.zero_()


def try_gpu(i=0):
    if torch.cuda.device_count() >= i + 1:
        return torch.device(f"cuda:{i}")
    return torch.device("cpu")


def accuracy(y_hat, y):
    if len(y_hat.shape) > 1 and y_hat.shape[1] > 1:
        y_hat = y_hat.argmax(axis=1)
    cmp = y_hat.type(y.dtype) == y
    return float(cmp.type(y.dtype).sum())


def evaluate_accuracy_gpu(net, data_iter, device=None):
    hits, number = 0.0, 0
    with torch.no_grad():
        for X, y in data_iter:
            X = X.to(device)
            y = y.to(device)
            hits, number = hits + accuracy(net(X), y), number + y.numel()
    return hits / number


# The section itself.
scale = 0.01
W1 = torch.randn(size=(20, 1, 3, 3)) * scale
b1 = torch.zeros(20)
W2 = torch.randn(size=(50, 20, 5, 5)) * scale
b2 = torch.zeros(50)
W3 = torch.randn(size=(800, 128)) * scale
b3 = torch.zeros(128)
W4 = torch.randn(size=(128, 10)) * scale
b4 = torch.zeros(10)
params = [W1, b1, W2, b2, W3, b3, W4, b4]


def lenet(X, params):
    h1_conv = F.conv2d(input=X, weight=params[0], bias=params[1])
    h1_activation = F.relu(h1_conv)
    h1 = F.avg_pool2d(input=h1_activation, kernel_size=(2, 2), stride=(2, 2))
    h2_conv = F.conv2d(input=h1, weight=params[2], bias=params[3])
    h2_activation = F.relu(h2_conv)
    h2 = F.avg_pool2d(input=h2_activation, kernel_size=(2, 2), stride=(2, 2))
    h2 = h2.reshape(h2.shape[0], -1)
    h3_linear = torch.mm(h2, params[4]) + params[5]
    h3 = F.relu(h3_linear)
    y_hat = torch.mm(h3, params[6]) + params[7]
    return y_hat


loss = nn.CrossEntropyLoss(reduction="none")


def get_params(params, device):
    new_params = [p.to(device) for p in params]
    for p in new_params:
        p.requires_grad_()
    return new_params


def allreduce(data):
    for i in range(1, len(data)):
        data[0][:] += data[i].to(data[0].device)
    for i in range(1, len(data)):
        data[i][:] = data[0].to(data[i].device)


def split_batch(X, y, devices):
    assert X.shape[0] == y.shape[0]
    return (nn.parallel.scatter(X, devices), nn.parallel.scatter(y, devices))


def shards_of(X, y, devices):
    if devices[0].type == "cpu":  # nn.parallel.scatter takes GPUs only
        return [X], [y]
    return split_batch(X, y, devices)


def train_batch(X, y, device_params, devices, lr):
    X_shards, y_shards = shards_of(X, y, devices)
    ls = [
        loss(lenet(X_shard, device_W), y_shard).sum()
        for X_shard, y_shard, device_W in zip(X_shards, y_shards, device_params)
    ]
    for l in ls:
        l.backward()
    with torch.no_grad():
        for i in range(len(device_params[0])):
            allreduce([device_params[c][i].grad for c in range(len(devices))])
    for param in device_params:
        sgd(param, lr, X.shape[0])
    return ls  # not in the book: the check compares them with ours


def wait(devices):
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def train(params, num_gpus, batch_size, lr, num_epochs):
    train_iter, test_iter = load_data_fashion_mnist(batch_size)
    devices = [try_gpu(i) for i in range(num_gpus)]
    device_params = [get_params(params, d) for d in devices]
    for epoch in range(num_epochs):
        start = time.perf_counter()
        for X, y in train_iter:
            train_batch(X, y, device_params, devices, lr)
            wait(devices)
        seconds = time.perf_counter() - start
        trained = (p.detach().cpu().numpy() for p in device_params[0])
        job.refuse(job.divergence(epoch + 1, trained, lr))
        acc = evaluate_accuracy_gpu(
            lambda x: lenet(x, device_params[0]), test_iter, devices[0]
        )
        job.print_epoch(
            epoch + 1,
            seconds,
            len(train_iter.dataset),
            acc,
            devices=[str(device) for device in devices],
            torch=torch.__version__,
        )


def check(first, num_gpus):
    """Take our first steps, image by image through the book's transforms."""
    devices = [try_gpu(i) for i in range(num_gpus)]
    # Copies: get_params does not copy to the device that holds the parameters.
    start = [torch.tensor(p) for p in first.check]
    device_params = [get_params(start, d) for d in devices]
    train_iter, _ = load_data_fashion_mnist(256)
    means = []
    for index in first.index:
        images, labels = zip(*[train_iter.dataset[i] for i in index])
        X, y = torch.stack(images), torch.tensor(labels)
        ls = train_batch(X, y, device_params, devices, first.lr)
        means.append(sum(float(l) for l in ls) / len(y))
    job.refuse(job.disagreement(means, first))


def main() -> None:
    parser = job.lenet_parser(__doc__)
    parser.add_argument("--num-devices", type=int, default=1, help="GPUs")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = job.parse(parser)
    torch.set_num_threads(args.threads)
    job.check_count(args.num_devices, torch.cuda.device_count(), "PyTorch")
    FashionMNISTOnDisk.images = job.data(args)
    start = params
    if args.check:
        first = job.first_steps(args.check)
        check(first, args.num_devices)
        start = [torch.tensor(p) for p in first.params]
    train(start, args.num_devices, args.global_batch_size, args.lr, args.num_epochs)


if __name__ == "__main__":
    main()
