"""huggingface/accelerate, examples/by_feature/: EXAMPLE is one of the accumulations.

EXAMPLE=gradient_accumulation PUBLIC=CLONE d2lpar verify accelerate_accumulation.py
"""

import importlib
import os
import sys
from types import SimpleNamespace as Names

import small
import torch
from torch.utils.data import DataLoader, default_collate

from d2lpar.verify.torch import ddp

small.absent("evaluate", "datasets", "transformers")
sys.path.insert(0, os.path.join(os.environ["PUBLIC"], "examples", "by_feature"))
public = importlib.import_module(os.environ["EXAMPLE"])
batch = small.batch_of_tokens if "auto" in os.environ["EXAMPLE"] else small.batch
public.Accelerator.end_training = lambda self: None  # the processes live on
public.AdamW, same = torch.optim.SGD, torch.optim.lr_scheduler.LambdaLR
public.get_constant_schedule = lambda optimizer, **_: same(optimizer, lambda k: 1)
public.get_linear_schedule_with_warmup = public.get_constant_schedule
Batch = type("Batch", (dict,), {"to": lambda self, *_, **__: self})


class Net(torch.nn.Linear):  # it stands for a language model
    def forward(self, X, labels, use_cache=None, num_items_in_batch=None):
        scores, y = super().forward(X), labels.flatten()
        total = torch.nn.CrossEntropyLoss(reduction="sum")(scores.flatten(0, -2), y)
        count = num_items_in_batch or (labels != -100).sum()
        return Names(loss=total / count, logits=scores)


def train(net, X, y, lr, steps=1, accumulate=1):
    rows = [{"X": X_k, "labels": y_k} for X_k, y_k in zip(X, y)]
    words = {"collate_fn": lambda rows: Batch(default_collate(rows))}
    test = DataLoader(rows[:1], 1, **words)
    public.get_dataloaders = lambda _, size: (DataLoader(rows, size, **words), test)
    kind = Names(from_pretrained=lambda *_, **__: net)
    public.AutoModelForSequenceClassification = public.AutoModelForCausalLM = kind
    size = -(-len(X) // (torch.distributed.get_world_size() * accumulate))
    config = {"lr": lr, "num_epochs": steps, "seed": 0, "batch_size": size}
    choices = Names(cpu=True, mixed_precision="no", with_wandb_tracking=False)
    choices.gradient_accumulation_steps = accumulate
    public.training_function({**config, "max_grad_norm": 1e9}, choices)


init, step, replicas = ddp(lambda: Net(6, 3).double(), train, whole=True)
