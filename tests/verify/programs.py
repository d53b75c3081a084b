"""The programs in subjects/: what is wrong with each, and where it was reported.

    python tests/verify/programs.py

runs them all, and writes the tables of docs/verify-evidence.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SUBJECTS = Path(__file__).parent / "subjects"
PAGE = Path(__file__).parents[2] / "docs" / "verify-evidence.md"
# JAX and MXNet want different NumPys: a Python of its own may have JAX.
PYTHON_WITH_JAX = os.environ.get("D2LPAR_JAX_PYTHON", sys.executable)

# framework: program: what it does, the mistake that is to be named, and a report of it.
WRONG: dict[str, dict[str, tuple[str, str, str]]] = {
    "torch": {
        "mean_of_means": (
            "DDP averages the means of the processes, also of shards of unequal length.",
            "mean of means",
            "pytorch/pytorch#37359",
        ),
        "sum_under_ddp": (
            "The sum of the losses by the global batch, though DDP divides by N once more.",
            "divided by N",
            "facebookresearch/fairseq#494",
        ),
        "not_averaged": (
            "An all-reduce sums. Nobody divides the sum of the means by the processes.",
            "sum of means",
            "neuralmagic/sparseml#135",
        ),
        "scaled_lr": (
            "The rate is multiplied by the processes, though the global batch is the same.",
            "N times",
            "Lightning-AI/pytorch-lightning#3706",
        ),
        "around_ddp": (
            "The forward pass goes through the module inside, so DDP's hooks are not armed.",
            "one device",
            "jingyaogong/minimind#853",
        ),
        "head_outside": (
            "DDP wraps the body only; the head's gradients stay on each process.",
            "one device",
            "intel/e2eAIOK#198",
        ),
        "lost_sum": (
            "The all-reduce works on a copy, and the optimizer on the gradient.",
            "lost sum",
            "",
        ),
        "padding_sampler": (
            "DistributedSampler repeats rows until they divide evenly.",
            "repeated rows",
            "pytorch/pytorch#25162",
        ),
        "dropping_sampler": (
            "DistributedSampler drops the rows that do not divide evenly.",
            "dropped rows",
            "pytorch/pytorch#41171",
        ),
        "idle_process": (
            "A process without rows returns early, and the others wait for it.",
            "hangs",
            "NVIDIA-NeMo/Automodel#2468",
        ),
        "no_zero_grad": (
            "Nobody zeroes the gradients between the steps.",
            "stale gradient",
            "pytorch/pytorch#47175",
        ),
        "pieces_summed": (
            "The losses of the pieces are means, and nobody divides them by their number.",
            "sum of pieces",
            "verl-project/verl#3332",
        ),
        "pieces_averaged": (
            "The mean of the pieces' means: samples of short pieces count more.",
            "mean of pieces",
            "huggingface/transformers#24725",
        ),
        "pieces_zeroed": (
            "zero_grad at the beginning of each piece drops the pieces before it.",
            "one piece",
            "huggingface/accelerate#1299",
        ),
        "pieces_not_summed": (
            "no_sync around the last piece instead of the first ones.",
            "piece not summed",
            "modelscope/FunASR#3472",
        ),
        "clips_first": (
            "Each process clips the gradient of its own shard, then they are averaged.",
            "clipped first",
            "NVIDIA/Megatron-LM#1998",
        ),
        "norm_twice": (
            "DDP has summed the gradient, and its squared norm is summed over processes again.",
            "norm twice",
            "modelscope/twinkle#290",
        ),
        "own_norm": (
            "Each process clips the sum by the norm of its own part of it.",
            "own norm",
            "sgl-project/SpecForge#663",
        ),
        "clips_nothing": (
            "clip_grad_norm_ gets gradients, looks for their gradients, and finds none.",
            "not clipped",
            "huggingface/transformers#46113",
        ),
        "half_hook": (
            "A hook sends the gradients in half precision.",
            "half precision",
            "",
        ),
        "tokens_of_each": (
            "Each process divides by the number of its own tokens, and DDP averages.",
            "mean of means of tokens",
            "huggingface/transformers#34242",
        ),
        "masked_of_each": (
            "cross_entropy with ignored labels under DDP: a mean over the valid ones.",
            "mean of means of tokens",
            "huggingface/transformers#24725",
        ),
        "tokens_of_pieces": (
            "Each accumulated piece is a mean over its own tokens.",
            "mean of pieces of tokens",
            "huggingface/transformers#34191",
        ),
        "clips_pieces": (
            "The gradient is clipped after each piece of an accumulation.",
            "clipped pieces",
            "",
        ),
        "second_step_raises": (
            "The second step of a call fails on several processes.",
            "raises",
            "",
        ),
        "stale_batch": (
            "A process keeps the first batch of each length.",
            "stale batch",
            "",
        ),
        "stale_parameters": (
            "A process keeps the network that it was started with.",
            "stale parameters",
            "",
        ),
        "single_allreduce": (
            "A training in float64 sends its gradients in float32.",
            "single precision",
            "",
        ),
        "decay_scaled_lr": (
            "The rate is multiplied by the processes, with weight decay.",
            "N times",
            "",
        ),
        "decay_sum_under_ddp": (
            "The sum of the losses by the global batch under DDP, with weight decay.",
            "divided by N",
            "",
        ),
        "decay_of_each": (
            "The penalty is counted once per process.",
            "constant part",
            "",
        ),
        "shuffled_padding_sampler": (
            "DistributedSampler as it is by default: it shuffles, and repeats rows.",
            "repeated rows",
            "pytorch/pytorch#25162",
        ),
        "shuffled_dropping_sampler": (
            "The same with drop_last.",
            "dropped rows",
            "",
        ),
        "root_lr": (
            "The rate is multiplied by the root of the processes.",
            "factor",
            "",
        ),
        "same_rows": (
            "Each process gets the rows of the first one: the sampler is missing.",
            "one device",
            "",
        ),
    },
    "mxnet": {
        "step_of_shard": (
            "The Trainer's step gets the batch size of a device, as a DataLoader per GPU has.",
            "N times",
            "zackchase/mxnet-the-straight-dope#165",
        ),
        "step_of_one": (
            "The Trainer's step is told a batch size of 1, so the sum is not divided.",
            "not divided",
            "dmlc/gluon-nlp#872",
        ),
        "mean_loss": (
            "The loss is a mean, and the Trainer divides by the batch again.",
            "divided twice",
            "unslothai/unsloth-zoo#1023",
        ),
        "rebinding": (
            "all-reduce by `=`: the list gets the sum, the other devices' gradients do not.",
            "stale replica",
            "discuss.d2l.ai/t/gpu/2800",
        ),
        "two_loops_in_one": (
            "all-reduce in one loop that adds and copies: the first devices miss a part.",
            "apart",
            "",
        ),
        "grad_add": (
            'Gradients of grad_req "add", for accumulation, that nobody zeroes.',
            "stale gradient",
            "apache/mxnet#16708",
        ),
        "idle_device": (
            "Fewer samples than devices: the idle ones hold the gradient of the batch before.",
            "idle device",
            "apache/mxnet#13909",
        ),
        "norm_of_all": (
            "clip_global_norm of the gradients of all contexts, after they have been summed.",
            "norm twice",
            "apache/mxnet#12859",
        ),
        "untied": (
            "A tied weight that becomes two when parameters are copied to several devices.",
            "untied",
            "facebookresearch/lingua#75",
        ),
    },
    "jax": {
        "grad_of_psum": (
            "The loss is summed over the devices, differentiated, and its gradient summed again.",
            "sum of means",
            "jax-ml/jax#3970",
        ),
        "padded": (
            "The batch is padded with zeros, and nothing masks them.",
            "padding",
            "marin-community/levanter#882",
        ),
        "padded_size": (
            "A mask leaves the padding out of the sum, and the mean divides by its rows, too.",
            "padded size",
            "",
        ),
        "clips_first": (
            "The gradient is clipped inside the function that pmap runs, before pmean.",
            "clipped first",
            "google/praxis#6",
        ),
        "late_gradient": (
            "The sum of a step is used in the next one, so as to overlap with its computation.",
            "old gradient",
            "",
        ),
        "captured_batch": (
            "A compiled step that has captured its batch.",
            "stale batch",
            "",
        ),
    },
}
RIGHT: dict[str, dict[str, str]] = {
    "torch": {
        "ddp": "DDP with the sum of the losses, times N, by the global batch: right for any shard.",
        "allreduce": "Without DDP: sum the gradients, divide by the global batch.",
        "momentum": "DDP with momentum and weight decay: a state between the steps of a call.",
        "adam": "DDP with Adam.",
        "tied": "DDP with a tied weight, a frozen layer, and one that no row uses.",
        "tokens": "DDP with tokens: one division by those of the global batch.",
        "masked": "The same with ignored labels.",
        "autocast": "DDP that computes in bfloat16 by autocast.",
        "sampler": "DDP with DistributedSampler's shuffled rows, even batches only.",
        "join": "DDP whose processes without rows join.",
        "fsdp2": "FSDP2: each process holds a part of each parameter.",
    },
    "mxnet": {
        "train_batch": "The four functions of d2lpar.",
        "lenet_concise": "LeNet in Gluon, d2lpar's training: `lenet_concise.train_batch`.",
        "book": "d2l's training from scratch, whose split_and_load takes even batches only.",
        "trainer": "d2l's concise training: a Trainer, whose step gets the global batch size.",
    },
    "jax": {
        "pmap": "pmap and pmean: even batches only.",
        "sharded": "jit and a batch that is sharded over a mesh: one program, and XLA sums.",
        "masked": "Any batch: padded with zeros, which a mask leaves out of sum and count.",
        "batch_norm": "BatchNorm whose mean and variance are those of the global batch, by pmean.",
    },
}
NOT_JUDGED: dict[str, dict[str, tuple[str, str, str]]] = {
    "torch": {
        "dropout": (
            "DDP with dropout: each process draws its own masks, and no two calls are equal.",
            "",
            "",
        ),
        "kept_momentum": (
            "DDP whose network and momentum stay from call to call, as in a training.",
            "",
            "",
        ),
        "local_sgd": (
            "Local SGD: four steps of each process alone, then the parameters are averaged.",
            "another algorithm",
            "",
        ),
        "adam_apart": (
            "Each process takes Adam's step by its own gradient; then parameters are averaged.",
            "another algorithm",
            "",
        ),
        "batch_norm": ("BatchNorm of each process's rows.", "another algorithm", ""),
        "batch_norm_shuffled": (
            "The same, with a loss that is a mean.",
            "another algorithm",
            "",
        ),
    },
    "mxnet": {
        "batch_norm": (
            "BatchNorm, whose mean and variance are those of each context's shard.",
            "another algorithm",
            "apache/mxnet#5888",
        ),
    },
}
DEVICES = {("mxnet", "two_loops_in_one"): 3}  # all others: 2
EVERY = [
    (framework, program)
    for group in (WRONG, RIGHT, NOT_JUDGED)
    for framework, programs in group.items()
    for program in programs
]


def python_of(framework: str) -> str:
    return PYTHON_WITH_JAX if framework == "jax" else sys.executable


def needs(framework: str) -> None:
    """Skip a test of a program whose framework is not here."""
    code = "from d2lpar import mx" if framework == "mxnet" else f"import {framework}"
    if subprocess.run(
        [python_of(framework), "-c", code], capture_output=True
    ).returncode:
        pytest.skip(f"{framework} is not installed")


def environment(program: str) -> dict[str, str]:
    """The variables with which a file of subjects/ is this program."""
    double = {"D2LPAR_DTYPE": "float64"} if program == "single_allreduce" else {}
    return {**os.environ, "D2LPAR_PROGRAM": program, **double}


def judge(framework: str, program: str) -> list:
    """The checks of a program."""
    code = (
        "import json, sys; from d2lpar.verify import verify; "
        "checks = verify(sys.argv[1], int(sys.argv[2]), timeout=float(sys.argv[3])); "
        "print(json.dumps(checks))"
    )
    devices = str(DEVICES.get((framework, program), 2))
    timeout = "100" if program == "idle_process" else "200"  # it hangs
    words = [f"steps_{framework}.py", devices, timeout]
    done = subprocess.run(
        [python_of(framework), "-c", code, *words],
        cwd=SUBJECTS,
        env=environment(program),
        capture_output=True,
        text=True,
    )
    from d2lpar.verify import Check

    return [Check(*check) for check in json.loads(done.stdout)]


def mistake_of(checks: list) -> str:
    """The first mistake that is named; a remark on one device counts as the last."""
    by_verdict = sorted(checks[:-1], key=lambda check: check.verdict == "skipped")
    return next((check.mistake for check in by_verdict if check.mistake), "")


def row(framework: str, program: str, checks: list) -> str:
    """A row of the table: the program, what it does, a report, what the tool says."""
    known = {**WRONG[framework], **NOT_JUDGED.get(framework, {})}
    about, _, report = known.get(program) or (RIGHT[framework][program], "", "")
    if report.startswith("discuss"):
        report = f" ([report](https://{report}))"
    elif report:
        address = f"https://github.com/{report.replace('#', '/issues/')}"
        report = f" ([{report}]({address}))"
    *rest, last = checks
    first = next((check for check in rest if check.verdict == last.verdict), last)
    if last.verdict == "right":
        first = next((c for c in rest if c.mistake == "not divided"), last)
    said = f"*{first.what}*: {first.line}" if first is not last else last.line
    return f"| {framework} {program}: {about}{report} | {said} |"


def main() -> None:
    text = PAGE.read_text("utf-8")
    for title, groups in (("wrong", [WRONG]), ("right", [RIGHT, NOT_JUDGED])):
        head, start, rest = text.partition(f"<!-- programs: {title} -->\n")
        _, end, tail = rest.partition("<!-- end -->\n")
        rows = []
        for framework, programs in [item for group in groups for item in group.items()]:
            for program in programs:
                rows.append(row(framework, program, judge(framework, program)))
                print(rows[-1], flush=True)
        table = "\n".join(["| program | what `verify` says |", "|---|---|", *rows])
        text = f"{head}{start}\n{table}\n\n{end}{tail}"
    PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
