"""Steps of PyTorch on several processes, by the variable D2LPAR_PROGRAM.

Each program is right, or has one mistake; programs.py says which.
"""

import os
from contextlib import nullcontext

import numpy
import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DistributedSampler

from d2lpar.verify.torch import ddp

PROGRAM = os.environ.get("D2LPAR_PROGRAM", "ddp")
DTYPE = os.environ.get("D2LPAR_DTYPE", "float32")
torch.set_default_dtype(getattr(torch, DTYPE))
EVEN = PROGRAM in ("sampler", "no_divide_by_two")
HAS_TOKENS = "token" in PROGRAM or "masked" in PROGRAM
BY_HAND = {  # without DDP: the gradients are summed by an all-reduce
    "allreduce", "scaled_lr", "root_lr", "lost_sum", "not_averaged", "clips_first",
    "own_norm", "idle_process", "local_sgd", "adam_apart", "single_allreduce",
    "decay_of_each", "stale_batch", "stale_parameters", "in_each_call_anew",
}  # fmt: skip
OWN_MEANS = {
    "mean_of_means", "tokens_of_each", "masked_of_each", "batch_norm_shuffled",
    "same_rows", "local_sgd",
}  # fmt: skip
kept = {}  # what a process keeps from call to call


class Tied(nn.Module):
    """A tied weight, a frozen layer, and one that no row uses."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.frozen, self.unused = nn.Linear(6, 3), nn.Linear(6, 3)
        self.second.weight = self.first.weight
        self.frozen.requires_grad_(False)

    def forward(self, X):
        return self.frozen(torch.tanh(self.second(torch.tanh(self.first(X)))))


def model():
    if PROGRAM == "tied":
        return Tied()
    noise = [nn.Dropout(0.5)] if PROGRAM == "dropout" else []
    norm = [nn.BatchNorm1d(8)] if PROGRAM.startswith("batch_norm") else []
    return nn.Sequential(
        nn.Linear(6, 8, not norm), *norm, nn.ReLU(), *noise, nn.Linear(8, 3)
    )


def batch(n, seed):
    rng = numpy.random.default_rng(seed)
    shape = (n, 5) if HAS_TOKENS else (n,)
    X, y = rng.normal(size=(*shape, 6)).astype(DTYPE), rng.integers(0, 3, shape)
    if HAS_TOKENS:  # -100 is ignored; each row has a token
        y[..., 1:][rng.random((n, 4)) < 0.5] = -100
    return X, y


def own_rows(n, rank, N):
    if "sampler" in PROGRAM:
        drops, shuffles = (
            "dropping" in PROGRAM,
            "shuffl" in PROGRAM or PROGRAM == "sampler",
        )
        return torch.tensor(list(DistributedSampler(
            range(n), N, rank, shuffle=shuffles, drop_last=drops)))  # fmt: skip
    return torch.arange(n).tensor_split(N)[0 if PROGRAM == "same_rows" else rank]


def loss_of(scores, y, n, N, own, weight):
    """The loss of a piece, which is right if DDP averages over the processes."""
    scores, y = scores.flatten(0, -2), y.flatten()
    if PROGRAM in OWN_MEANS or "sampler" in PROGRAM:
        return cross_entropy(scores, y) * weight
    if PROGRAM in ("pieces_averaged", "pieces_summed", "tokens_of_pieces"):
        share = own * weight if PROGRAM != "pieces_summed" else own
        return N * share * cross_entropy(scores, y)
    total = cross_entropy(scores, y, reduction="sum")
    return (
        total / n
        if PROGRAM in ("sum_under_ddp", "decay_sum_under_ddp")
        else N / n * total
    )


def optimizer_of(net, lr, N):
    if PROGRAM in ("adam", "adam_apart"):
        return torch.optim.Adam(net.parameters(), lr)
    lr = lr * {"scaled_lr": N, "root_lr": N**0.5, "decay_scaled_lr": N}.get(PROGRAM, 1)
    decay = 0.01 if PROGRAM == "momentum" else 0.1 if "decay" in PROGRAM else 0
    if PROGRAM == "decay_of_each":
        decay = decay * N
    momentum = 0.9 if "momentum" in PROGRAM else 0
    return torch.optim.SGD(net.parameters(), lr, momentum, weight_decay=decay)


def by_hand(net, N, rank, own):
    """Sum the gradients, which are means over all rows already, over the processes."""
    for p in net.parameters():
        g = p.grad / N  # loss_of has multiplied by N
        if PROGRAM == "lost_sum":
            distributed.all_reduce(g.clone())
        elif PROGRAM == "single_allreduce" and N > 1:
            distributed.all_reduce(single := g.float())
            g = single.to(g.dtype)
        else:
            g = g / own if PROGRAM == "not_averaged" else g
            distributed.all_reduce(g)
        p.grad = g


def clip(net, clip_norm):
    if clip_norm is not None:
        nn.utils.clip_grad_norm_(net.parameters(), clip_norm)


def train(net, X, y, lr, steps=1, clip_norm=None, accumulate=1):
    rank, N, n = distributed.get_rank(), distributed.get_world_size(), len(X)
    if PROGRAM == "kept_momentum":
        return train_on(net, X, y, lr, N, rank)
    if PROGRAM == "stale_batch":
        X, y = kept.setdefault(n, (X, y)) if N > 1 else (X, y)
    if PROGRAM == "stale_parameters" and N > 1:
        net.load_state_dict(kept.setdefault("net", net.state_dict()))
    if PROGRAM == "second_step_raises" and N > 1 and steps > 1:
        raise AssertionError("the bucket has its gradients already: call reset()")
    optimizer = optimizer_of(net, lr, N)
    rows = own_rows(n, rank, N)
    if PROGRAM == "idle_process" and len(rows) == 0:
        return None
    wraps = PROGRAM not in BY_HAND and not PROGRAM.startswith("fsdp")
    body = net[:2] if PROGRAM == "head_outside" else net
    wrapped = DDP(body, find_unused_parameters=PROGRAM == "tied") if wraps else net
    if PROGRAM.startswith("fsdp"):
        wrapped = fully_shard(net)
        optimizer = optimizer_of(net, lr, N)  # its parameters are new
    if N > 1 and PROGRAM in ("half_hook", "bfloat16_hook"):
        hook = {
            "h": default_hooks.fp16_compress_hook,
            "b": default_hooks.bf16_compress_hook,
        }
        wrapped.register_comm_hook(None, hook[PROGRAM[0]])
    valid = n
    if HAS_TOKENS:
        valid = (y != -100).sum().item()
    forward = wrapped.module if PROGRAM == "around_ddp" else wrapped
    if PROGRAM == "head_outside":

        def forward(X):
            return net[2](wrapped(X))

    pieces = rows.tensor_split(accumulate)
    own = (y[rows] != -100).sum().item() / valid
    casts = PROGRAM.startswith("autocast")
    for _ in range(4 * steps if PROGRAM == "local_sgd" else steps):
        if PROGRAM != "no_zero_grad":
            optimizer.zero_grad()
        for k, piece in enumerate(pieces):
            if PROGRAM == "pieces_zeroed":
                optimizer.zero_grad()
            waits = k % 2 if PROGRAM == "pieces_not_summed" else k < len(pieces) - 1
            if PROGRAM.startswith("fsdp"):
                wrapped.set_requires_gradient_sync(not waits)
            with (
                wrapped.no_sync() if wraps and waits else nullcontext(),
                torch.autocast(X.device.type, torch.bfloat16)
                if casts
                else nullcontext(),
                Join([wrapped]) if PROGRAM == "join" and not waits else nullcontext(),
            ):
                if PROGRAM == "join" and len(piece) == 0:
                    continue
                scores = forward(X[piece]).to(net_dtype(net))
                loss = loss_of(scores, y[piece], valid, N, own, 1 / len(pieces))
                loss.backward()
            if PROGRAM == "clips_pieces":
                clip(net, clip_norm)
        if PROGRAM == "clips_first":
            for p in net.parameters():
                p.grad /= N * own
            clip(net, clip_norm)
            for p in net.parameters():
                p.grad *= N * own
        norm = (
            sum((p.grad**2).sum() for p in net.parameters() if p.grad is not None)
            ** 0.5
        )
        if PROGRAM in BY_HAND - {"local_sgd", "adam_apart"}:
            by_hand(net, N, rank, own)
        if clip_norm is not None and PROGRAM == "norm_twice":
            distributed.all_reduce(square := norm**2)
            for p in net.parameters():
                p.grad *= (clip_norm / square**0.5).clamp(max=1)
        elif clip_norm is not None and PROGRAM == "own_norm":
            for p in net.parameters():
                p.grad *= (clip_norm / (norm / N)).clamp(max=1)
        elif PROGRAM == "clips_nothing" and clip_norm is not None:
            nn.utils.clip_grad_norm_([p.grad for p in net.parameters()], clip_norm)
        elif PROGRAM != "clips_first":
            clip(net, clip_norm)
        optimizer.step()
    if PROGRAM in ("local_sgd", "adam_apart"):
        for p in net.parameters():
            distributed.all_reduce(p.data)
            p.data /= N
    return None


def net_dtype(net):
    return next(net.parameters()).dtype


def train_on(net, X, y, lr, N, rank):
    """Keep the network and the momentum from call to call, as in a training."""
    if "net" not in kept:
        kept["net"] = DDP(model())
        kept["optimizer"] = optimizer_of(kept["net"], lr, N)
    kept["net"].module.load_state_dict(net.state_dict())
    kept["optimizer"].param_groups[0]["lr"] = lr
    kept["optimizer"].zero_grad()
    rows = own_rows(len(X), rank, N)
    loss_of(kept["net"](X[rows]), y[rows], len(X), N, 1, 1).backward()
    kept["optimizer"].step()
    net.load_state_dict(kept["net"].module.state_dict())


init, step, replicas = ddp(model, train, whole=True)
