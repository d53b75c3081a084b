"""The same LeNet, data and recipe in a plain PyTorch loop on data in memory.

    pip install -e '.[peers]'
    python benchmarks/peers/pytorch_loop.py --threads 2 --num-epochs 3
    python benchmarks/peers/pytorch_loop.py --device cuda --form graph

Tensors stay on the device, each batch is one gather; no data loader, and no
synchronisation within an epoch. The step is issued by Python ("eager"), captured once
in a CUDA graph and replayed ("graph"), or its network and loss go through torch.compile
with mode "reduce-overhead" ("compile"), or with the default mode and are captured, too
("compiled-graph"). Prints a JSON line per epoch.
"""

import time

import job
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

FORMS = ("eager", "graph", "compile", "compiled-graph")


def lenet(params, device):
    """The network, with the book's initial parameters or `params`; NHWC on CPUs."""
    net = nn.Sequential(
        nn.Conv2d(1, 20, 3), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(20, 50, 5), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip
    with torch.no_grad():
        for k, p in enumerate(net.parameters()):
            if params is not None:  # a dense W is (inputs, outputs) in the book
                p.copy_(torch.from_numpy(params[k].T if k in (4, 6) else params[k]))
            else:
                p.normal_(std=0.01) if p.ndim > 1 else p.zero_()
    on_cpu = device.type == "cpu"
    layout = torch.channels_last if on_cpu else torch.contiguous_format
    return net.to(device, memory_format=layout)


def sgd(net, lr):
    return torch.optim.SGD(net.parameters(), lr=lr)


def train_batch(net, optimizer, X, y, index, mean_loss=F.cross_entropy):
    optimizer.zero_grad()
    loss = mean_loss(net(X[index]), y[index])
    loss.backward()
    optimizer.step()
    return loss.detach()


def train_batch_in(form, net, optimizer, X, y, sizes):
    """`train_batch` of batches of these `sizes`, as a function of `index` alone."""
    mode = "reduce-overhead" if form == "compile" else "default"

    @torch.compile(mode=mode, dynamic=False)
    def compiled_loss(images, labels):
        return F.cross_entropy(net(images), labels)

    def step(index):
        if not form.startswith("compile"):
            return train_batch(net, optimizer, X, y, index)
        if form == "compile":
            torch.compiler.cudagraph_mark_step_begin()
        return train_batch(lambda images: images, optimizer, X, y, index, compiled_loss)

    if form.endswith("graph"):
        return captured(step, net, sizes, y.device)
    if form == "compile":
        warm_up(step, net, sizes, y.device, WARM_UP)
    return step


# DistributedDataParallel needs 11 steps before it can be captured.
WARM_UP = 11


def warm_up(step, net, sizes, device, times):
    """Take steps of every size, and undo them."""
    before = [p.detach().clone() for p in net.parameters()]
    for size in sizes:
        for _ in range(times):
            step(torch.zeros(size, dtype=torch.int64, device=device))
    with torch.no_grad():
        for p, old in zip(net.parameters(), before):
            p.copy_(old)


def captured(step, net, sizes, device):
    """`step` as one CUDA graph for each size of batch, which replays its kernels."""
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):  # capturing must not be the first use of a kernel
        warm_up(step, net, sizes, device, WARM_UP)
    torch.cuda.current_stream(device).wait_stream(side)
    graphs = {}
    for size in sizes:
        index = torch.zeros(size, dtype=torch.int64, device=device)
        graph = torch.cuda.CUDAGraph()
        # Threads of NCCL may call CUDA meanwhile.
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            loss = step(index)
        graphs[size] = graph, index, loss

    def replay(new_index):
        graph, index, loss = graphs[len(new_index)]
        index.copy_(new_index)
        graph.replay()
        return loss

    return replay


def sizes_of_batches(samples, size):
    """The sizes of an epoch's batches: `size`, and that of a last, smaller one."""
    return [size, samples % size] if samples % size else [size]


def data_on(device, args):
    """X_train, y_train, X_test, y_test as tensors on the device."""
    X_train, y_train, X_test, y_test = job.data(args)
    tensors = []
    for images, labels in ((X_train, y_train), (X_test, y_test)):
        X = torch.tensor(images[:, None], dtype=torch.float32) / 255
        tensors.append(X.to(device))
        tensors.append(torch.tensor(labels, dtype=torch.int64, device=device))
    return tensors


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = job.lenet_parser(__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--form", choices=FORMS, default="eager")
    args = job.parse(parser)
    if args.form.endswith("graph") and args.device == "cpu":
        job.refuse(f"--form {args.form}: CUDA graphs need --device cuda")
    if args.device == "cuda" and not torch.cuda.is_available():
        job.refuse("--device cuda: PyTorch sees no GPU here")
    device = torch.device(args.device)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)

    X, y, X_test, y_test = data_on(device, args)
    params = None
    if args.check:
        first = job.first_steps(args.check)
        net = lenet(first.check, device)
        optimizer = sgd(net, first.lr)
        index = torch.tensor(first.index, device=device)
        sizes = [index.shape[1]]
        step = train_batch_in(args.form, net, optimizer, X, y, sizes)
        losses = [float(step(i)) for i in index]
        job.refuse(job.disagreement(losses, first))
        params = first.params

    net = lenet(params, device)
    optimizer = sgd(net, args.lr)
    sizes = sizes_of_batches(len(y), args.global_batch_size)
    step = train_batch_in(args.form, net, optimizer, X, y, sizes)
    name = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    for epoch in range(args.num_epochs):
        wait(device)
        start = time.perf_counter()
        rng = np.random.default_rng([args.seed, epoch + 1])
        order = torch.from_numpy(rng.permutation(len(y))).to(device)
        for index in order.split(args.global_batch_size):
            step(index)
        wait(device)
        seconds = time.perf_counter() - start
        trained = (p.detach().cpu().numpy() for p in net.parameters())
        job.refuse(job.divergence(epoch + 1, trained, args.lr))
        with torch.no_grad():
            hits = [
                (net(a).argmax(1) == b).sum()
                for a, b in zip(X_test.split(1000), y_test.split(1000))
            ]
        job.print_epoch(
            epoch + 1,
            seconds,
            len(y),
            float(sum(hits)) / len(y_test),
            devices=[name],
            torch=torch.__version__,
        )


if __name__ == "__main__":
    main()
