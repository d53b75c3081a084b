"""Run PyTorch scripts unchanged, record their first optimizer steps, and end them.

`python -m d2lpar.verify.torch.prelude` imports PyTorch once. It reads runs from its
input, a line of JSON each, forks their processes as torchrun would start them, and
prints a line with their exit statuses.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import runpy
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

import numpy
import torch
import torch._dynamo  # DDP imports it: once here, and not in every process
import torch.utils.data
from torch import distributed, nn
from torch.nn import functional
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._pytree import tree_map

LOSSES = (
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div",
)  # fmt: skip


class Recorder:
    """The parameters, gradients and data of the first steps of one optimizer."""

    def __init__(self, run: dict, rank: int):
        self.folder, self.steps, self.optimizer = (
            Path(run["folder"]),
            run["steps"],
            None,
        )
        self.rank, self.size = rank, run["processes"]
        self.params: list = []  # a vector before the first step and after each
        self.grads: list = []
        self.lr: list = []
        self.calls: list = []  # the tensors that each call from outside got
        self.calls_before: list = []  # each step
        self.flags: set = set()
        self.depth, self.saved = 0, False
        replay, self.split = run["replay"], run["split"]
        files = sorted(Path(replay).iterdir()) if replay else []
        recorded = [pickle.loads(file.read_bytes()) for file in files]
        self.replayed = [file["calls"] for file in recorded]
        self.each = recorded[0]["calls_before"][0] if files else 0  # calls in a step

    def enter(self, arguments):
        """Record the data of a call from outside, or replace them by recorded ones."""
        leaves: list = []

        def visit(value):
            is_data = isinstance(value, torch.Tensor) and value.dim()
            if not is_data or value.requires_grad:
                return value
            if self.replayed:
                value = self.recorded(value, len(self.calls), len(leaves))
            copy = value.detach().cpu().clone()
            leaves.append(
                (copy.float() if copy.dtype == torch.bfloat16 else copy).numpy()
            )
            return value

        arguments = tree_map(visit, arguments)
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            self.flags.add("16 bits")
        if leaves:
            self.calls.append(leaves)
        return arguments

    def recorded(self, value, call: int, leaf: int):
        """Return what all processes had in this call, or one process in its own."""
        N = len(self.replayed)
        if self.split:  # one process has as many calls as all of them together
            step, call = divmod(call, N * self.each)
            rank, call = divmod(call, self.each)
            new = self.replayed[rank][step * self.each + call][leaf]
        else:
            news = [calls[call][leaf] for calls in self.replayed]
            same = all(numpy.array_equal(new, news[0]) for new in news)
            if same and len(news[0]) != len(self.replayed[0][call][0]):
                return value  # not of the rows, such as class weights
            new = numpy.concatenate(news)
        if new.shape[1:] != value.shape[1:]:
            sys.exit(f"it takes {tuple(value.shape)}, they {tuple(new.shape)}")
        return torch.from_numpy(new).to(value.device, value.dtype)

    def before(self, optimizer, *_):
        self.optimizer = self.optimizer or optimizer
        if optimizer is self.optimizer:
            if not self.params:
                self.params.append(self.vector(lambda p: p))
            self.lr.append([group["lr"] for group in optimizer.param_groups])

    def after(self, optimizer, *_):
        if optimizer is self.optimizer:
            # A closure, a hook or the step itself may compute or sum the gradients.
            self.grads.append(self.vector(lambda p: p.grad))
            self.params.append(self.vector(lambda p: p))
            self.calls_before.append(len(self.calls))
            if len(self.grads) == self.steps:
                self.save()
                until = time.monotonic() + 30  # others may still wait for a message
                while len(list(self.folder.iterdir())) < self.size:
                    if time.monotonic() > until:
                        break
                    time.sleep(0.05)
                sys.stdout.flush()
                os._exit(0)

    def vector(self, of):
        """Return a tensor of each parameter, in one vector of float64."""
        parts = []
        with torch.no_grad():
            for group in self.optimizer.param_groups:
                for p in group["params"]:
                    value = of(p)
                    value = torch.zeros_like(p) if value is None else value
                    if hasattr(value, "full_tensor"):  # FSDP2
                        value = value.full_tensor()
                    parts.append(value.detach().flatten().double().cpu())
        return torch.cat(parts).numpy()

    def save(self):
        if self.saved or not self.grads:
            return
        self.saved = True
        names = ("params", "grads", "lr", "calls", "calls_before", "flags")
        partial = self.folder.with_name(f"{self.folder.name}.{self.rank}")
        partial.write_bytes(pickle.dumps({name: getattr(self, name) for name in names}))
        partial.rename(self.folder / str(self.rank))  # complete, or not there


def watch(recorder: Recorder) -> None:
    """Have every optimizer, module and loss report to the recorder."""
    register_optimizer_step_pre_hook(recorder.before)
    register_optimizer_step_post_hook(recorder.after)

    def watched(function):
        def call(*args, **kwargs):
            if not recorder.depth and torch.is_grad_enabled():
                args, kwargs = recorder.enter((args, kwargs))
            recorder.depth += 1
            try:
                return function(*args, **kwargs)
            finally:
                recorder.depth -= 1

        return call

    nn.Module.__call__ = watched(nn.Module.__call__)  # type: ignore[method-assign]
    for name in LOSSES:
        setattr(functional, name, watched(getattr(functional, name)))
    forward = nn.modules.batchnorm._BatchNorm.forward

    def counted(self, X):
        if self.training:
            recorder.flags.add("BatchNorm")
        return forward(self, X)

    nn.modules.batchnorm._BatchNorm.forward = counted  # type: ignore[method-assign]
    # Processes draw other masks than one does.
    functional.dropout = lambda X, *_, **__: X
    attention = functional.scaled_dot_product_attention

    def without_dropout(*args, **kwargs):
        kwargs["dropout_p"] = 0.0
        return attention(*args[:4], **kwargs)

    functional.scaled_dot_product_attention = without_dropout


def without_gpus() -> None:
    """Let a program for GPUs compute on the CPU, with gloo for nccl."""
    start, wrap = distributed.init_process_group, nn.parallel.DistributedDataParallel
    make = wrap.__init__

    def init_process_group(*_, **words):
        start("gloo", **{key: words[key] for key in words.keys() & {"timeout"}})

    def init(self, module, device_ids=None, output_device=None, *args, **words):
        make(self, module, None, None, *args, **words)

    def is_gpu(value):
        return type(value) is int or "cuda" in str(value)

    def stays(to):
        def call(self, *args, **words):
            args = tuple(a for a in args if not is_gpu(a))
            words = {k: v for k, v in words.items() if not is_gpu(v)}
            return to(self, *args, **words) if args or words else self

        return call

    def asked_by_program():
        return not sys._getframe(1).f_globals["__name__"].startswith("torch.")

    loads = torch.utils.data.DataLoader.__init__

    def load(self, *args, **words):
        loads(self, *args, **{**words, "pin_memory": False})

    torch.utils.data.DataLoader.__init__ = load  # type: ignore[method-assign]
    distributed.init_process_group = init_process_group
    wrap.__init__ = init  # type: ignore[method-assign]
    for kind in (nn.Module, torch.Tensor):
        kind.to = stays(kind.to)  # type: ignore
        kind.cuda = lambda self, *_, **__: self  # type: ignore
    torch.Tensor.pin_memory = lambda self, *_: self  # type: ignore
    torch.cuda.set_device = lambda *_: None
    torch.cuda.device_count = lambda: 8  # as a machine that runs such programs has
    if hasattr(torch, "accelerator"):
        torch.accelerator.set_device_index = lambda *_: None
        torch.accelerator.current_accelerator = lambda *_, **__: torch.device("cpu")
        torch.accelerator.is_available = asked_by_program  # torch.compile asks, too
        torch.accelerator.device_count = torch.cuda.device_count


def run_script(run: dict, rank: int, port: int) -> None:
    """Be a process of a run: run the script with everything watched."""
    output = os.open(f"{run['folder']}.{rank}.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    N = run["processes"]
    ours = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": N, "LOCAL_WORLD_SIZE": N}
    ours |= {"GROUP_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in ours.items()})
    recorder = Recorder(run, rank)
    if not torch.cuda.is_available():
        without_gpus()
    watch(recorder)
    torch.set_num_threads(1)
    # A program without a seed draws other rows in each process, and so it does here.
    for seed in (torch.manual_seed, numpy.random.seed, random.seed):
        seed(rank)
    command = list(run["command"])
    is_module = command[0] == "-m"
    sys.argv = command[is_module:]
    try:
        if is_module:
            sys.path[0] = os.getcwd()
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            print(f"Error: it ended by exit: {end.code}", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        recorder.save()  # of a program with fewer steps
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def main() -> None:
    """Do the runs that are asked for."""
    for line in sys.stdin:
        run = json.loads(line)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        left = set()
        for rank in range(run["processes"]):
            if pid := os.fork():
                left.add(pid)
            else:
                run_script(run, rank, port)
        until = None
        while left:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            left.discard(pid)
            until = until or (time.monotonic() + 10 if pid else None)
            if until and time.monotonic() > until:  # they wait for one that ended
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        print("done", flush=True)


if __name__ == "__main__":
    main()
