"""Run a PyTorch script unchanged in a forked process, and record its first steps."""

from __future__ import annotations

import os
import random
import re
import runpy
import sys
import traceback
from types import SimpleNamespace

import numpy
import torch
from torch import distributed, nn
from torch.nn import functional
from torch.optim import optimizer as optimizers
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

STEPS = 3  # of one optimizer: then a run ends
LOSSES = [f for f in dir(functional) if re.search("(_loss|entropy|logits|kl_div)$", f)]
DROPOUTS = [f for f in dir(functional) if "dropout" in f and f[0] != "_"]
ATTENTION = functional.scaled_dot_product_attention
SHORT = (torch.float16, torch.bfloat16)


class Recorder:
    """Records the first steps of all optimizers, and sends them.

    After a step, parameters become the next of `follow`. Tensors that calls get are
    replaced by those of `replay`, one after the other.
    """

    def __init__(self, pipe, follow: list[numpy.ndarray], replay: list):
        self.pipe, self.follow, self.replay = pipe, iter(follow), iter(replay)
        self.steps: list[SimpleNamespace] = []
        self.numbers: dict = {}  # of optimizers
        self.begun: list = []  # a step of an optimizer may call those of others
        self.data: list = []
        self.names: dict = {}  # of parameters
        self.flags: set = set()
        self.depth = 0  # of calls in calls

    def watch(self) -> None:
        """Have every optimizer, module and loss report, and switch dropout off."""
        optimizers.register_optimizer_step_pre_hook(self.before)
        optimizers.register_optimizer_step_post_hook(self.after)
        nn.Module.__call__ = self.watched(nn.Module.__call__, "module")  # type: ignore
        for name in LOSSES:
            setattr(functional, name, self.watched(getattr(functional, name), "loss"))
        # Processes draw other masks than one does.
        for name in DROPOUTS:
            setattr(functional, name, lambda X, *_, **__: X)
        nn.RNNBase.dropout = property(lambda _: 0.0, lambda *_: None)  # type: ignore
        functional.scaled_dot_product_attention = without_dropout

    def watched(self, function, kind):
        """Return a function that records the data of its calls, and computes alike."""

        def call(*args, **kwargs):
            self.flags.add(kind)
            is_inner = self.depth or torch.compiler.is_compiling()
            is_first = not is_inner and torch.is_grad_enabled()
            if is_first:
                args, kwargs = tree_map(self.visit, (args, kwargs))
                drawn = torch.get_rng_state()
            self.depth += 1
            try:
                result = function(*args, **kwargs)
            finally:
                self.depth -= 1
            if getattr(result, "dtype", None) in SHORT:
                self.flags.add("16 bits")
            if is_first and not torch.equal(drawn, torch.get_rng_state()):
                self.flags.add("random numbers")
            if is_first and kind == "module":
                for name, p in args[0].named_parameters():
                    self.names[id(p)] = re.sub(r"\bmodule\.|_orig_mod\.", "", name)
                self.flags |= {
                    type(m).__name__ for m in args[0].modules() if m.training
                }
            return result

        return call

    def visit(self, value):
        """Record an argument of a call from outside, or replace it."""
        is_data = isinstance(value, torch.Tensor) and value.dim()
        if not is_data or value.requires_grad:
            return value
        if (new := next(self.replay, None)) is not None:
            if new.shape[1:] != value.shape[1:]:
                raise ValueError(f"it takes {value.shape}, they {new.shape}")
            value = torch.from_numpy(new).to(value.device, value.dtype)
        copy = value.detach().cpu().clone()
        self.data.append((copy.float() if copy.dtype in SHORT else copy).numpy())
        return value

    def before(self, optimizer, *_):
        params = [p for group in optimizer.param_groups for p in group["params"]]
        self.begun.append((params, vector(params)))

    def after(self, optimizer, *_):
        params, start = self.begun.pop()
        if self.begun:
            return
        names = [self.names.get(id(p), str(k)) for k, p in enumerate(params)]
        sizes = [p.numel() for p in params]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
        step = SimpleNamespace(
            optimizer=self.numbers.setdefault(optimizer, len(self.numbers)),
            names=list(zip(names, sizes)),
            rates=[float(group["lr"]) for group in optimizer.param_groups],
            start=start,
            grads=vector(grads),  # a closure or the step itself may compute them
            end=vector(params),
            data=self.data,  # that modules and losses got since the last step
            flags=self.flags,
        )
        self.steps.append(step)
        self.data = []
        end = next(self.follow, None)
        if end is not None and end.size == step.end.size:
            for p, part in zip(params, torch.from_numpy(end).split(sizes)):
                getattr(p, "to_local", p.detach)().detach().copy_(part.view(p.shape))
        if [own.optimizer for own in self.steps].count(step.optimizer) == STEPS:
            self.send()

    def send(self):
        """Send what is recorded, and wait: others may still need this process."""
        self.pipe.send(self.steps)
        self.pipe.recv()  # never, or EOFError when the parent has been killed


def without_dropout(query, key, value, attn_mask=None, dropout_p=0, *rest, **words):
    """Compute attention as PyTorch's function does, but without dropout."""
    return ATTENTION(query, key, value, attn_mask, 0.0, *rest, **words)


@torch.no_grad()
def vector(values) -> numpy.ndarray:
    """Return tensors as one vector of float64; shards of FSDP2 are gathered."""
    whole = [v.full_tensor() if hasattr(v, "full_tensor") else v for v in values]
    return torch.cat([v.detach().flatten().double().cpu() for v in whole]).numpy()


class OnCPU(TorchFunctionMode):
    """Lets every call that names a GPU compute on the CPU."""

    @torch.compiler.disable(recursive=False)
    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        takes_number = function in (torch.Tensor.to, torch._C._nn._parse_to)

        def cpu(value):
            is_name = isinstance(value, (str, torch.device)) and "cuda" in str(value)
            return "cpu" if is_name or takes_number and type(value) is int else value

        kwargs = {key: cpu(value) for key, value in (kwargs or {}).items()}
        return function(*map(cpu, args), **kwargs)


def without_gpus(size: int) -> None:
    """Let a program for GPUs compute on the CPU, with gloo for nccl."""
    start, wrap = distributed.init_process_group, nn.parallel.DistributedDataParallel
    make = wrap.__init__

    def init_process_group(backend=None, *args, device_id=None, **words):
        start("gloo", *args, **words)

    def init(self, module, device_ids=None, output_device=None, *args, **words):
        make(self, module, None, None, *args, **words)

    def asked_by_program():  # torch.compile asks, too
        return not sys._getframe(1).f_globals["__name__"].startswith("torch.")

    distributed.init_process_group = init_process_group
    wrap.__init__ = init  # type: ignore[method-assign]
    torch.cuda.set_device = lambda *_: None
    torch.cuda.device_count = lambda: size
    if hasattr(torch, "accelerator"):
        torch.accelerator.set_device_index = lambda *_: None
        torch.accelerator.current_accelerator = lambda *_, **__: torch.device("cpu")
        torch.accelerator.is_available = asked_by_program
        torch.accelerator.device_count = lambda: max(2, size)  # examples refuse one
    OnCPU().__enter__()


def run_script(pipe, rank, size, N, command, output, follow, replay) -> None:
    """Be a process of a run: run the script with everything watched."""
    for number in (1, 2):
        os.dup2(output.fileno(), number)
    # Those of a notebook or a test write elsewhere.
    sys.stdout = sys.stderr = open(1, "w", 1, closefd=False)
    recorder = Recorder(pipe, follow, replay)
    recorder.watch()
    if torch.cuda.device_count() < N:  # of the larger run: both compute alike
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before anything asks CUDA itself
        without_gpus(size)

    def spawn(function, args=(), nprocs=1, *_, **__):  # all processes are here already
        if nprocs != size:
            sys.exit(f"mp.spawn starts {nprocs} where {size} run: change --with")
        function(rank, *args)

    torch.save = lambda *_, **__: None  # the user's checkpoints stay as they are
    torch.multiprocessing.spawn = spawn  # type: ignore
    # A program without a seed draws other rows in each process, and so it does here.
    for seed in (torch.manual_seed, numpy.random.seed, random.seed):
        seed(rank)
    sys.argv, sys.path[0] = command, os.path.dirname(os.path.abspath(command[0]))
    try:
        runpy.run_path(command[0], run_name="__main__")
    except BaseException as error:
        traceback.print_exc()
        if not isinstance(error, SystemExit):
            return
    if recorder.steps:  # of a program with fewer steps
        recorder.send()
