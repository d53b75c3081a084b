"""Start a step of PyTorch for `d2lpar verify`: workers, parameters in and out."""

from __future__ import annotations

import inspect
import os
import signal
import socket
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

import torch
import torch._dynamo  # DDP imports it: once here, and not in every process
from torch import distributed, multiprocessing

__all__ = ["ddp"]


def ddp(
    model: Callable[[], torch.nn.Module],
    train: Callable[..., Any],
    *,
    whole: bool = False,
    backend: str | None = None,
) -> tuple[Callable, Callable, Callable]:
    """Return `init`, `step` and `replicas` of a training with a process per device.

    `model()` makes the network. `train(net, X, y, lr)` takes one step with it in each
    process of a group, which exists already, and changes the parameters of `net` in
    place; `X` and `y` are the process's rows, or with `whole` the whole batch. Its
    arguments `steps`, `clip_norm` and `accumulate` become arguments of `step`.
    Processes stay alive between calls; `net` is made again. `backend` is "nccl" if
    there is a GPU for each process, else "gloo".
    """
    groups: dict[int, dict] = {}  # the workers of each number of processes, by pipe

    def init(seed):
        torch.manual_seed(seed)
        return [as_array(p) for p in parameters(model())]

    def replicas(params, X, y, num_devices, lr, *rest, **words):
        if num_devices not in groups:
            groups[num_devices] = started(model, train, num_devices, whole, backend)
        workers, answers = groups[num_devices], {}
        for pipe in workers:
            pipe.send((params, X, y, (lr, *rest), words))
        while len(answers) < num_devices:
            for pipe in wait([pipe for pipe in workers if pipe not in answers]):
                try:
                    answers[pipe] = pipe.recv()
                except EOFError:
                    workers[pipe].join()
                    line = f"a process ended with status {workers[pipe].exitcode}"
                    answers[pipe] = RuntimeError(line)
                if isinstance(answers[pipe], Exception):
                    for process in groups.pop(num_devices, {}).values():
                        process.kill()  # it may wait for the one that failed
                    raise answers[pipe]
        return [answers[pipe] for pipe in workers]

    def step(*arguments, **words):
        return replicas(*arguments, **words)[0]

    own = list(inspect.signature(train).parameters.values())[4:]
    given = inspect.signature(lambda params, X, y, num_devices, lr: 0)
    signature = given.replace(parameters=[*given.parameters.values(), *own])
    step.__signature__ = replicas.__signature__ = signature  # type: ignore[attr-defined]
    return init, step, replicas


def parameters(net: torch.nn.Module) -> list[torch.Tensor]:
    """Return the parameters, a tied one as often as it has names."""
    return [p for _, p in net.named_parameters(remove_duplicate=False)]


def as_array(p):
    """Return a parameter in host memory, in float32 if NumPy lacks its type."""
    p = p.detach()
    p = p.full_tensor() if hasattr(p, "full_tensor") else p  # of FSDP2
    return (p.float() if p.dtype.itemsize < 4 else p).cpu().numpy()


def started(model, train, num_devices: int, whole: bool, backend: str | None) -> dict:
    """Fork the processes of a group, which have PyTorch imported already."""
    context, workers = multiprocessing.get_context("fork"), {}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for rank in range(num_devices):
        ours, theirs = context.Pipe()
        how = (rank, num_devices, port, theirs, model, train, whole, backend)
        workers[ours] = context.Process(target=work, args=how, daemon=True)
        workers[ours].start()
        theirs.close()
    return workers


def work(rank, num_devices, port, pipe, model, train, whole, backend) -> None:
    """Be a process of the group, as torchrun would start it: train when asked."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    torch.set_num_threads(1)
    ours = {"RANK": rank, "LOCAL_RANK": rank, "MASTER_PORT": port}
    ours |= {"WORLD_SIZE": num_devices, "LOCAL_WORLD_SIZE": num_devices}
    ours |= {"MASTER_ADDR": "127.0.0.1"}
    os.environ.update({name: str(value) for name, value in ours.items()})
    enough = torch.cuda.device_count() >= num_devices
    backend = backend or os.environ.get("D2LPAR_BACKEND", "nccl" if enough else "gloo")
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    distributed.init_process_group(backend, rank=rank, world_size=num_devices)
    parent = os.getppid()
    while True:
        while not pipe.poll(2):  # its other end has copies in other workers
            if os.getppid() != parent:
                os._exit(0)
        params, X, y, arguments, words = pipe.recv()
        torch.manual_seed(0)
        net = model()
        with torch.no_grad():
            for p, value in zip(parameters(net), params):
                p.copy_(torch.as_tensor(value))
        net = net.to(device)
        X_y = [torch.as_tensor(a).to(device) for a in (X, y)]
        if not whole:
            X_y = [a.tensor_split(num_devices)[rank] for a in X_y]
        try:
            train(net, *X_y, *arguments, **words)
            pipe.send([as_array(p) for p in parameters(net)])
        except Exception as error:
            is_plain = type(error).__module__ == "builtins" and len(error.args) == 1
            line = f"{type(error).__name__}: {error}"
            pipe.send(type(error)(str(error)) if is_plain else RuntimeError(line))
