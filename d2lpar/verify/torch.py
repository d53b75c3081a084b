"""Start processes of PyTorch for `d2lpar verify`, as torchrun would start them."""

from __future__ import annotations

import inspect
import os
import signal
import socket
import traceback
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import Any

import torch
import torch._dynamo  # DDP imports it: once here, and not in every process
from torch import distributed

__all__ = ["ddp"]


class Group:
    """Forked processes, which have PyTorch imported already and answer by pipes."""

    def __init__(self, size: int, work: Callable, *how):
        self.processes: dict = {}  # the number of each process, by its pipe
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for rank in range(size):
            ours, theirs = Pipe()
            if process := os.fork():
                self.processes[ours] = process
                theirs.close()
                continue
            words = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0}
            words |= {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
            os.environ.update({name: str(value) for name, value in words.items()})
            os.environ["MASTER_ADDR"] = "127.0.0.1"
            os.register_at_fork(after_in_child=theirs.close)
            torch.set_num_threads(1)
            try:
                work(theirs, rank, size, *how)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)

    def answers(self, timeout: float | None = None) -> list:
        """Return the next message of each process.

        Raises an error that one sends, EOFError if one has ended, and TimeoutError.
        """
        found: dict[Any, Any] = {}
        while waiting := [pipe for pipe in self.processes if pipe not in found]:
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
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def ddp(
    model: Callable[[], torch.nn.Module],
    train: Callable[..., Any],
    *,
    whole: bool = False,
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
        return [as_array(p) for p in parameters(model())]

    def replicas(params, X, y, num_devices, lr, *rest, **words):
        if num_devices not in groups:
            groups[num_devices] = Group(num_devices, work, model, train, whole)
        try:
            for pipe in groups[num_devices].processes:
                pipe.send((params, X, y, (lr, *rest), words))
            return groups[num_devices].answers()
        except Exception as error:
            groups.pop(num_devices).kill()
            ended = isinstance(error, EOFError)
            raise RuntimeError("a process ended") if ended else error from None

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


def work(pipe, rank, size, model, train, whole) -> None:
    """Be a process of the group: train when asked, and send the parameters."""
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.device_count() >= max(2, size):  # one GPU would compute for one alone
        device, backend = torch.device("cuda", rank), "nccl"
        torch.cuda.set_device(device)
    distributed.init_process_group(backend, rank=rank, world_size=size)
    parent = os.getppid()
    while True:
        while not pipe.poll(2):  # its other end has copies in other workers
            if os.getppid() != parent:
                return
        params, X, y, arguments, words = pipe.recv()
        try:
            torch.manual_seed(0)
            net = model()
            with torch.no_grad():
                for p, value in zip(parameters(net), params):
                    p.copy_(torch.as_tensor(value))
            net = net.to(device)
            X_y = [torch.as_tensor(a).to(device) for a in (X, y)]
            if not whole:
                X_y = [a.tensor_split(size)[rank] for a in X_y]
            train(net, *X_y, *arguments, **words)
            pipe.send([as_array(p) for p in parameters(net)])
        except Exception as error:
            is_plain = type(error).__module__ == "builtins" and len(error.args) == 1
            line = f"{type(error).__name__}: {error}"
            pipe.send(type(error)(str(error)) if is_plain else RuntimeError(line))
