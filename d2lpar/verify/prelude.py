"""Run PyTorch scripts unchanged, record their first optimizer steps, and end them.

`python -m d2lpar.verify.prelude` imports PyTorch once. It reads runs from its input, a
line of JSON each, forks their processes as torchrun would start them, and prints a line
when they have ended.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import runpy
import signal
import socket
import sys
import time
import traceback
from functools import wraps
from itertools import chain
from pathlib import Path

import numpy
import torch
import torch._dynamo  # DDP imports it: once here, and not in every process
from torch import distributed, nn
from torch.nn import functional
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._pytree import tree_map

LOSSES = [f for f in dir(functional) if re.search("(_loss|entropy|logits|kl_div)$", f)]
ATTENTION = functional.scaled_dot_product_attention
DROPOUTS = [f for f in dir(functional) if "dropout" in f and f[0] != "_"]


def without_dropout(query, key, value, attn_mask=None, dropout_p=0, *rest, **words):
    """Compute attention as PyTorch's function does, but without dropout."""
    return ATTENTION(query, key, value, attn_mask, 0.0, *rest, **words)


class Recorder:
    """The parameters, gradients and data of the first steps of each optimizer."""

    def __init__(self, run: dict, rank: int):
        self.folder, self.steps = Path(run["folder"]), run["steps"]
        self.rank, self.size = rank, run["processes"]
        self.optimizers: dict = {}  # what is recorded of each
        self.stepping = None  # the optimizer whose step may call those of others
        self.calls: list = []  # the tensors that each call from outside got
        self.names: dict = {}  # of parameters
        self.flags: set = set()
        self.depth, self.saved = 0, False
        follow, self.split = run["follow"], run["split"]
        files = sorted(Path(follow).iterdir()) if follow else []
        self.followed = [pickle.loads(file.read_bytes()) for file in files]
        replayed = [file[0]["calls"] for file in self.followed if run["each"]]
        self.replayed = [list(chain(*calls)) for calls in replayed]
        self.each, self.seen = run["each"], 0  # tensors in a step, and until now

    def enter(self, arguments):
        """Record the data of a call from outside, or replace them by recorded ones."""
        leaves: list = []

        def visit(value):
            is_data = isinstance(value, torch.Tensor) and value.dim()
            if not is_data or value.requires_grad:
                return value
            if self.replayed:
                value = self.recorded(value, self.seen)
            self.seen += 1
            copy = value.detach().cpu().clone()
            copy = copy.float() if copy.dtype == torch.bfloat16 else copy
            leaves.append(copy.numpy())
            return value

        arguments = tree_map(visit, arguments)
        if leaves:
            self.calls.append(leaves)
        return arguments

    def recorded(self, value, k: int):
        """Return what all processes had in place of tensor k, or one in its own."""
        N = len(self.replayed)
        if self.split:  # one process has as many tensors as all of them together
            step, k = divmod(k, N * self.each)
            rank, k = divmod(k, self.each)
            new = self.replayed[rank][step * self.each + k]
        else:
            news = [leaves[k] for leaves in self.replayed]
            if all(numpy.array_equal(new, value.float().cpu()) for new in news):
                return value  # not of the rows, such as class weights
            new = numpy.concatenate(news)
        if new.shape[1:] != value.shape[1:]:
            sys.exit(f"it takes {tuple(value.shape)}, they {tuple(new.shape)}")
        return torch.from_numpy(new).to(value.device, value.dtype)

    def before(self, optimizer, *_):
        self.stepping = self.stepping or optimizer
        if optimizer is self.stepping:
            names = ("params", "moves", "grads", "lr", "calls_before")
            its = self.optimizers.setdefault(optimizer, {name: [] for name in names})
            self.start = self.vector(optimizer, lambda p: p)
            its["params"] = its["params"] or [self.start]
            its["lr"].append([float(group["lr"]) for group in optimizer.param_groups])

    def after(self, optimizer, *_):
        if optimizer is self.stepping:
            self.stepping, its = None, self.optimizers[optimizer]
            # A closure, a hook or the step itself may compute or sum the gradients.
            its["grads"].append(self.vector(optimizer, lambda p: p.grad))
            its["params"].append(self.vector(optimizer, lambda p: p))
            its["moves"].append(its["params"][-1] - self.start)
            its["calls_before"].append(len(self.calls))
            its["names"] = [
                (self.names.get(id(p), str(k)), p.numel())
                for k, p in enumerate(params_of(optimizer))
            ]
            k, steps = list(self.optimizers).index(optimizer), len(its["grads"])
            for theirs in self.followed[:1]:
                if k < len(theirs) and steps < len(theirs[k]["params"]):
                    self.follow(optimizer, theirs[k]["params"][steps])
            counts = [len(other["grads"]) for other in self.optimizers.values()]
            if min(counts) == self.steps or counts[0] > self.steps:
                self.save()
                until = time.monotonic() + 30  # others may still wait for a message
                while len(list(self.folder.iterdir())) < self.size:
                    if time.monotonic() > until:
                        break
                    time.sleep(0.05)
                sys.stdout.flush()
                os._exit(0)

    def follow(self, optimizer, path) -> None:
        """Let one process start its next step where several processes do."""
        params = params_of(optimizer)
        if sum(p.numel() for p in params) == path.size:
            parts = torch.from_numpy(path).split([p.numel() for p in params])
            for p, part in zip(params, parts):
                p = p.detach().to_local() if hasattr(p, "to_local") else p.detach()
                p.copy_(part.view(p.shape))

    def vector(self, optimizer, of):
        """Return a tensor of each parameter, in one vector of float64."""
        parts = []
        with torch.no_grad():
            for p in params_of(optimizer):
                value = of(p)
                value = torch.zeros_like(p) if value is None else value
                if hasattr(value, "full_tensor"):  # FSDP2
                    value = value.full_tensor()
                parts.append(value.detach().flatten().double().cpu())
        return torch.cat(parts).numpy()

    def save(self):
        files = [its for its in self.optimizers.values() if its["grads"]]
        if files and not self.saved:
            self.saved, common = True, {"calls": self.calls, "flags": self.flags}
            partial = self.folder.with_name(f"{self.folder.name}.{self.rank}")
            partial.write_bytes(pickle.dumps([{**its, **common} for its in files]))
            partial.rename(self.folder / str(self.rank))  # complete, or not there


def params_of(optimizer) -> list:
    """Return all parameters of an optimizer."""
    return list(chain(*(group["params"] for group in optimizer.param_groups)))


def watch(recorder: Recorder) -> None:
    """Have every optimizer, module and loss report to the recorder."""
    register_optimizer_step_pre_hook(recorder.before)
    register_optimizer_step_post_hook(recorder.after)

    def watched(function, flag="module"):
        @wraps(function)
        def call(*args, **kwargs):
            is_inner = recorder.depth or torch.compiler.is_compiling()
            is_first = not is_inner and torch.is_grad_enabled()
            if is_first:
                args, kwargs = recorder.enter((args, kwargs))
                drawn = torch.get_rng_state()
            recorder.flags.add(flag)
            for module in args[:1] if flag == "module" else ():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    recorder.flags |= {"BatchNorm"} if module.training else set()
                for name, p in module.named_parameters() if is_first else ():
                    recorder.names[id(p)] = re.sub(r"\bmodule\.|_orig_mod\.", "", name)
            recorder.depth += 1
            try:
                result = function(*args, **kwargs)
                if getattr(result, "dtype", None) in (torch.float16, torch.bfloat16):
                    recorder.flags.add("16 bits")
                return result
            finally:
                recorder.depth -= 1
                if is_first and not torch.equal(drawn, torch.get_rng_state()):
                    recorder.flags.add("random numbers")

        return call

    nn.Module.__call__ = watched(nn.Module.__call__)  # type: ignore[method-assign]
    for name in LOSSES:
        setattr(functional, name, watched(getattr(functional, name), "loss"))
    # Processes draw other masks than one does.
    for name in DROPOUTS:
        setattr(functional, name, lambda X, *_, **__: X)
    nn.RNNBase.dropout = property(lambda _: 0.0, lambda *_: None)  # type: ignore
    functional.scaled_dot_product_attention = without_dropout


def without_gpus(rank: int, N: int, address: str) -> None:
    """Let a program for GPUs compute on the CPU, with gloo for nccl."""
    start, wrap = distributed.init_process_group, nn.parallel.DistributedDataParallel
    make = wrap.__init__

    def init_process_group(*_, **words):
        words = {key: words[key] for key in words.keys() & {"timeout"}}
        start("gloo", address, rank=rank, world_size=N, **words)

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

    distributed.init_process_group = init_process_group
    wrap.__init__ = init  # type: ignore[method-assign]
    for kind in (nn.Module, torch.Tensor):
        kind.to = stays(kind.to)  # type: ignore
        kind.cuda = lambda self, *_, **__: self  # type: ignore
    torch.Tensor.pin_memory = lambda self, *_: self  # type: ignore
    torch.cuda.set_device = lambda *_: None
    torch.cuda.device_count = lambda: N
    if hasattr(torch, "accelerator"):
        torch.accelerator.set_device_index = lambda *_: None
        torch.accelerator.current_accelerator = lambda *_, **__: torch.device("cpu")
        torch.accelerator.is_available = asked_by_program  # torch.compile asks, too
        torch.accelerator.device_count = lambda: max(2, N)  # examples refuse one


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
        without_gpus(rank, N, f"tcp://127.0.0.1:{port}")
    watch(recorder)

    def spawn(function, args=(), nprocs=1, *_, **__):  # all processes are here already
        if nprocs != N:
            sys.exit(f"mp.spawn starts {nprocs} processes where {N} run: change --with")
        function(rank, *args)

    torch.save = lambda *_, **__: None  # the user's checkpoints stay as they are
    torch.multiprocessing.spawn = spawn  # type: ignore
    torch.set_num_threads(1)
    # A program without a seed draws other rows in each process, and so it does here.
    for seed in (torch.manual_seed, numpy.random.seed, random.seed):
        seed(rank)
    sys.argv = list(run["command"])
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(f"Error: {end.code}", file=sys.stderr)
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
