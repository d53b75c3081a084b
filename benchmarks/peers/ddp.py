"""PyTorch's DistributedDataParallel on 1, 2, ... devices: NCCL on GPUs, gloo on CPU.

    pip install -e '.[peers]'
    python benchmarks/peers/ddp.py --num-devices 2 --num-epochs 3
    torchrun --nproc-per-node 2 benchmarks/peers/ddp.py --num-epochs 3

The network and the data of pytorch_loop.py, in one process per device; each holds all
of the data and takes its shard of every batch. DistributedDataParallel averages the
gradients while the backward pass still runs. With `--form graph` each process replays
its step, NCCL's all-reduce included, as a CUDA graph. The first process prints a JSON
line per epoch.
"""

import os
import sys
import tempfile
import time

import job
import numpy as np
import pytorch_loop
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


def replica(params, device):
    net = pytorch_loop.lenet(params, device)
    if device.index is None:
        return DistributedDataParallel(net)
    with torch.cuda.stream(torch.cuda.Stream(device)):  # else it cannot be captured
        return DistributedDataParallel(net, device_ids=[device])


def train_batch(net, optimizer, X, y, shard, batch):
    """One step on this process's shard of a batch of `batch`; its summed loss."""
    optimizer.zero_grad()
    loss = F.cross_entropy(net(X[shard]), y[shard], reduction="sum")
    # DistributedDataParallel takes the mean over processes; shards may be uneven.
    (loss * (dist.get_world_size() / batch)).backward()
    optimizer.step()
    return loss.detach()


def train_batch_in(form, net, optimizer, X, y, batches):
    """`train_batch` of batches of these lengths, as a function of `index` alone."""

    def shard_of(index):
        return index.tensor_split(dist.get_world_size())[dist.get_rank()]

    if form == "eager":
        return lambda index: train_batch(
            net, optimizer, X, y, shard_of(index), len(index)
        )
    steps = {}
    for batch in batches:

        def step(shard, batch=batch):
            return train_batch(net, optimizer, X, y, shard, batch)

        sizes = [len(shard_of(torch.arange(batch)))]
        steps[batch] = pytorch_loop.captured(step, net, sizes, y.device)
    return lambda index: steps[len(index)](shard_of(index))


def wait(device):
    """Wait until every process has finished all of its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        dist.barrier(device_ids=[device.index])
    else:
        dist.barrier()


def evaluate_accuracy(net, X, y):
    """Accuracy on the test images, of which every process takes a part."""
    rank, processes = dist.get_rank(), dist.get_world_size()
    parts = zip(X.split(1000)[rank::processes], y.split(1000)[rank::processes])
    hits = torch.zeros(1, device=X.device)
    with torch.no_grad():
        for a, b in parts:
            hits += (net.module(a).argmax(1) == b).sum()
    dist.all_reduce(hits)
    return float(hits) / len(y)


def save(net, path):
    """Write [W1, b1, ..., W4, b4], shaped as in the book, as "params.0" ... of .npz."""
    arrays = [p.detach().cpu().numpy() for p in net.parameters()]
    arrays = [a.T if k in (4, 6) else a for k, a in enumerate(arrays)]
    np.savez(path, **{f"params.{k}": a for k, a in enumerate(arrays)})


def first_losses(first, X, y, device, form):
    """The mean losses of our first steps, the same in every process."""
    net = replica(first.check, device)
    optimizer = pytorch_loop.sgd(net, first.lr)
    losses = []
    step = train_batch_in(form, net, optimizer, X, y, [first.index.shape[1]])
    for index in torch.tensor(first.index, device=device):
        loss = step(index).clone()
        dist.all_reduce(loss)
        losses.append(float(loss) / len(index))
    return losses


def refuse(why, device):
    """Exit with status 2 if there is a reason; the first process reports it."""
    if why is not None and dist.get_rank() == 0:
        job.report(why)
    wait(device)  # the first process to exit ends the others: let it report before
    if why is not None:
        sys.exit(2)


def train(args, device):
    """Train in this process, one of several."""
    X, y, X_test, y_test = pytorch_loop.data_on(device, args)
    torch.manual_seed(args.seed)
    params = None
    if args.check:
        first = job.first_steps(args.check)
        losses = first_losses(first, X, y, device, args.form)
        refuse(job.disagreement(losses, first), device)
        params = first.params
    net = replica(params, device)
    optimizer = pytorch_loop.sgd(net, args.lr)
    sizes = pytorch_loop.sizes_of_batches(len(y), args.global_batch_size)
    step = train_batch_in(args.form, net, optimizer, X, y, sizes)

    labels = [None] * dist.get_world_size()
    on_gpu = device.type == "cuda"
    label = torch.cuda.get_device_name(device) if on_gpu else f"{args.threads} threads"
    dist.all_gather_object(labels, f"{device} {label}")
    for epoch in range(args.num_epochs):
        wait(device)
        start = time.perf_counter()
        rng = np.random.default_rng([args.seed, epoch + 1])  # the same in all processes
        order = torch.from_numpy(rng.permutation(len(y))).to(device)
        batches = order.split(args.global_batch_size)[: args.steps]
        for index in batches:
            step(index)
        wait(device)
        seconds = time.perf_counter() - start
        trained = (p.detach().cpu().numpy() for p in net.parameters())
        refuse(job.divergence(epoch + 1, trained, args.lr), device)
        acc = evaluate_accuracy(net, X_test, y_test)
        if dist.get_rank() == 0:
            job.print_epoch(
                epoch + 1,
                seconds,
                sum(map(len, batches)),
                acc,
                steps=len(batches),
                global_batch_size=args.global_batch_size,
                devices=labels,
                backend=dist.get_backend(),
                torch=torch.__version__,
            )
    if args.save and dist.get_rank() == 0:
        save(net.module, args.save)


def worker(rank, processes, args, rendezvous, train=train):
    """One of the processes, on a device of its own."""
    torch.set_num_threads(args.threads)
    on_gpu = args.device == "cuda"
    number = int(os.environ.get("LOCAL_RANK", rank))  # among those on this machine
    device = torch.device("cuda", number) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=rendezvous,
        rank=rank,
        world_size=processes,
    )
    try:
        train(args, device)
    finally:
        dist.destroy_process_group()


def start(args, train):
    """Run `train(args, device)` in one process per device of this machine."""
    if args.device == "cuda" and torch.cuda.device_count() < args.num_devices:
        seen = torch.cuda.device_count()
        job.refuse(f"{args.num_devices} processes on GPUs: PyTorch sees {seen} here")
    # The loopback works without a network, too.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        arguments = (args.num_devices, args, f"file://{folder}/rendezvous", train)
        try:
            mp.spawn(worker, arguments, nprocs=args.num_devices)
        except mp.ProcessExitedException as error:
            sys.exit(error.exit_code)


def main() -> None:
    parser = job.lenet_parser(__doc__)
    parser.add_argument("--num-devices", type=int, default=1, help="processes")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="[default: GPUs]")
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--steps", type=int, help="per epoch [default: all]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--form", choices=("eager", "graph"), default="eager")
    parser.add_argument("--save", help="file for the trained parameters")
    args = job.parse(parser)
    args.device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if args.form == "graph" and args.device == "cpu":
        job.refuse("--form graph: CUDA graphs need --device cuda")
    by_torchrun = "LOCAL_RANK" in os.environ
    processes = int(os.environ["WORLD_SIZE"]) if by_torchrun else args.num_devices
    if processes < 1 or args.global_batch_size < processes:
        job.refuse(f"{processes} processes: 1 to the batch's {args.global_batch_size}")
    if by_torchrun:
        return worker(int(os.environ["RANK"]), processes, args, "env://")
    start(args, train)


if __name__ == "__main__":
    main()
