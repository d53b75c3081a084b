"""Run a PyTorch script unchanged in a forked process, and record its first steps."""

from __future__ import annotations

import os
import random
import re
import runpy
import sys
import threading
import traceback
from collections import Counter
from functools import wraps
from itertools import chain
from typing import Any, NamedTuple

import numpy
import torch
from torch import distributed, nn
from torch.nn import functional
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._pytree import tree_map

STEPS = 3  # that are recorded of each optimizer
LOSSES = [f for f in dir(functional) if re.search("(_loss|entropy|logits|kl_div)$", f)]
ATTENTION = functional.scaled_dot_product_attention
DROPOUTS = [f for f in dir(functional) if "dropout" in f and f[0] != "_"]


def without_dropout(query, key, value, attn_mask=None, dropout_p=0, *rest, **words):
    """Compute attention as PyTorch's function does, but without dropout."""
    return ATTENTION(query, key, value, attn_mask, 0.0, *rest, **words)


class Step(NamedTuple):
    """A step of an optimizer, by number: vectors of its parameters, and the data."""

    optimizer: int
    names: list  # of each parameter, with its size
    rates: list  # the learning rates of groups
    start: numpy.ndarray
    grads: numpy.ndarray
    end: numpy.ndarray
    calls: list  # the tensors that each call of a module or loss got before the step


class Recorder:
    """Records the first steps of each optimizer, and sends them.

    After a step, parameters become those at the end of this step of `follow`. Tensors
    that calls get are replaced by those of `replay`, one after the other.
    """

    def __init__(self, pipe, follow: list[Step], replay: list):
        self.pipe, self.follow, self.replay = pipe, follow, iter(replay)
        self.steps: list[Step] = []
        self.optimizers: list = []
        self.stepping: Any = None  # the optimizer whose step may call those of others
        self.calls: list = []
        self.names: dict = {}  # of parameters
        self.flags: set = set()
        self.depth = 0  # of calls in calls

    def enter(self, arguments):
        """Record the data of a call from outside, or replace them."""
        leaves: list = []

        def visit(value):
            is_data = isinstance(value, torch.Tensor) and value.dim()
            if not is_data or value.requires_grad:
                return value
            if (new := next(self.replay, None)) is not None:
                if new.shape[1:] != value.shape[1:]:
                    sys.exit(f"it takes {tuple(value.shape)}, they {new.shape}")
                value = torch.from_numpy(new).to(value.device, value.dtype)
            copy = value.detach().cpu().clone()
            copy = copy.float() if copy.dtype == torch.bfloat16 else copy
            leaves.append(copy.numpy())
            return value

        arguments = tree_map(visit, arguments)
        if leaves:
            self.calls.append(leaves)
        return arguments

    def before(self, optimizer, *_):
        self.stepping = self.stepping or optimizer
        if optimizer is self.stepping:
            self.start = vector(optimizer, lambda p: p)
            self.rates = [float(group["lr"]) for group in optimizer.param_groups]

    def after(self, optimizer, *_):
        if optimizer is not self.stepping:
            return
        self.stepping = None
        if optimizer not in self.optimizers:
            self.optimizers.append(optimizer)
        number, params = self.optimizers.index(optimizer), params_of(optimizer)
        names = [
            (self.names.get(id(p), str(k)), p.numel()) for k, p in enumerate(params)
        ]
        # A closure, a hook or the step itself may compute or sum the gradients.
        grads, end = vector(optimizer, lambda p: p.grad), vector(optimizer, lambda p: p)
        how = (number, names, self.rates, self.start, grads, end, self.calls)
        self.steps.append(Step(*how))
        self.calls = []
        for step in self.follow[len(self.steps) - 1 : len(self.steps)]:
            if step.optimizer == number and step.end.size == end.size:
                parts = torch.from_numpy(step.end).split([p.numel() for p in params])
                for p, part in zip(params, parts):
                    p = p.detach().to_local() if hasattr(p, "to_local") else p.detach()
                    p.copy_(part.view(p.shape))
        counts = Counter(step.optimizer for step in self.steps)
        if min(counts.values()) == STEPS or counts[0] > STEPS:
            self.send()

    def send(self):
        """Send what is recorded, and wait: others may still need this process."""
        sys.stdout.flush()
        self.pipe.send((self.steps, self.flags))
        threading.Event().wait()


def vector(optimizer, of) -> numpy.ndarray:
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


def without_gpus(rank: int, N: int) -> None:
    """Let a program for GPUs compute on the CPU, with gloo for nccl."""
    start, wrap = distributed.init_process_group, nn.parallel.DistributedDataParallel
    make, address = wrap.__init__, f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}"

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


def run_script(pipe, rank, size, N, command, output, follow, replay) -> None:
    """Be a process of a run: run the script with everything watched."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    # Those of a notebook or a test write elsewhere.
    sys.stdout, sys.stderr = (open(k, "w", 1, closefd=False) for k in (1, 2))
    recorder = Recorder(pipe, follow, replay)
    if torch.cuda.device_count() < N:  # of the larger run: both compute alike
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before anything asks CUDA itself
        without_gpus(rank, size)
    watch(recorder)

    def spawn(function, args=(), nprocs=1, *_, **__):  # all processes are here already
        if nprocs != size:
            sys.exit(
                f"mp.spawn starts {nprocs} processes where {size} run: change --with"
            )
        function(rank, *args)

    torch.save = lambda *_, **__: None  # the user's checkpoints stay as they are
    torch.multiprocessing.spawn = spawn  # type: ignore
    # A program without a seed draws other rows in each process, and so it does here.
    for seed in (torch.manual_seed, numpy.random.seed, random.seed):
        seed(rank)
    sys.argv = list(command)
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(f"Error: {end.code}", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if recorder.steps:  # of a program with fewer steps
            recorder.send()
