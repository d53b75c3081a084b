"""Start processes of PyTorch for `d2lpar verify`, as torchrun would start them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import wraps
from multiprocessing import Pipe, current_process, get_context
from multiprocessing.connection import wait
from typing import Any

import torch
import torch._dynamo  # DDP imports it: once here, and not in every process
from torch import distributed

__all__ = ["ddp"]


class Group:
    """Forked processes, which have PyTorch imported already and answer by pipes."""

    def __init__(self, size: int, work: Callable, *how):
        self.processes: dict[Any, Any] = {}  # by the pipe of each
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        for rank in range(size):
            ours, theirs = Pipe()
            os.register_at_fork(after_in_child=ours.close)  # so it ends with the parent
            told = (theirs, port, rank, size, work, how)
            process = get_context("fork").Process(target=begin, args=told, daemon=True)
            process.start()
            theirs.close()
            self.processes[ours] = process

    def answers(self, timeout: float | None = None) -> list:
        """Return the next message of each process.

        Raises an error that one sends, EOFError if one has ended, and TimeoutError.
        """
        found: dict[Any, Any] = {}
        while waiting := self.processes.keys() - found.keys():
            if not (ready := wait(waiting, timeout)):
                raise TimeoutError
            for pipe in ready:
                found[pipe] = pipe.recv()  # type: ignore
                if isinstance(found[pipe], Exception):
                    raise found[pipe]
        return [found[pipe] for pipe in self.processes]

    def kill(self) -> None:
        """End all processes: one may wait for another that failed."""
        for process in self.processes.values():
            process.kill()
            process.join()


def begin(pipe, port, rank, size, work, how) -> None:
    """Be a process of a group: do its work, and send the error that it raises."""
    words = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "MASTER_PORT": port}
    words |= {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1"}
    os.environ.update({name: str(value) for name, value in words.items()})
    torch.set_num_threads(1)
    current_process().daemon = False  # a DataLoader may start processes
    os.register_at_fork(after_in_child=pipe.close)  # which do not keep the pipe open
    try:
        work(pipe, rank, size, *how)
    except BaseException as error:
        is_known = isinstance(error, Exception) and type(error).__module__ == "builtins"
        line = f"{type(error).__name__}: {error}"
        pipe.send(error if is_known else RuntimeError(line))
        pipe.recv()  # never: others would fail if this process left, and hide why
    finally:
        os._exit(1)


def ddp(
    model: Callable, train: Callable, *, whole: bool = False
) -> tuple[Callable, Callable, Callable]:
    """Return `init`, `step` and `replicas` of a training with a process per device.

    `model()` makes the network. `train(net, X, y, lr)` takes one step with it in each
    process of a group, which exists already, and changes the parameters of `net` in
    place; `X` and `y` are the process's rows, or with `whole` the whole batch. Its
    arguments `steps`, `clip_norm` and `accumulate` become arguments of `step`.
    Processes stay alive between calls; `net` is made again. They use NCCL if there is
    a GPU for each process, else gloo.
    """
    groups: dict[int, Group] = {}  # by the number of processes

    def init(seed):
        torch.manual_seed(seed)
        return [array(p) for p in parameters(model())]

    @wraps(train)  # its optional arguments are those of the step
    def replicas(params, X, y, num_devices, *options, **words):
        if num_devices not in groups:
            groups[num_devices] = Group(num_devices, work, model, train, whole)
        try:
            for pipe in groups[num_devices].processes:
                pipe.send((params, X, y, options, words))
            return groups[num_devices].answers()
        except BaseException as error:
            groups.pop(num_devices).kill()
            ended = isinstance(error, EOFError)
            raise RuntimeError("a process ended") if ended else error from None

    @wraps(train)
    def step(*arguments, **words):
        return replicas(*arguments, **words)[0]

    return init, step, replicas


def parameters(net: torch.nn.Module) -> list[torch.Tensor]:
    """Return the parameters, a tied one as often as it has names."""
    return [p.detach() for _, p in net.named_parameters(remove_duplicate=False)]


def array(p: Any):
    """Return a parameter in host memory, in float32 if NumPy lacks its type."""
    p = p.full_tensor() if hasattr(p, "full_tensor") else p  # of FSDP2
    return (p.float() if p.dtype.itemsize < 4 else p).cpu().numpy()


def work(pipe, rank, size, model, train, whole) -> None:
    """Train when asked, and send the parameters."""
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.device_count() >= max(2, size):  # one GPU would compute for one alone
        device, backend = torch.device("cuda", rank), "nccl"
        torch.cuda.set_device(device)
    distributed.init_process_group(backend)
    while True:
        params, X, y, options, words = pipe.recv()
        torch.manual_seed(0)
        net = model()
        for p, value in zip(parameters(net), params):
            p.copy_(torch.as_tensor(value))
        net = net.to(device)
        X_y = [torch.as_tensor(a).to(device) for a in (X, y)]
        if not whole:
            X_y = [a.tensor_split(size)[rank] for a in X_y]
        train(net, *X_y, *options, **words)
        pipe.send([array(p) for p in parameters(net)])
