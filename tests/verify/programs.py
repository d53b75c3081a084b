"""The programs in subjects/: what is wrong with each, and where it was reported.

    python tests/verify/programs.py

runs them all, in about four minutes, and writes the tables of docs/verify.md.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SUBJECTS = Path(__file__).parent / "subjects"
PAGE = Path(__file__).parents[2] / "docs" / "verify.md"
# JAX and MXNet want different NumPys: a Python of its own may have JAX.
PYTHON_WITH_JAX = os.environ.get("D2LPAR_JAX_PYTHON", sys.executable)

# The mistake that is to be named, and a report of it.
WRONG = {
    "torch_mean_of_means": ("mean of means", "pytorch/pytorch#37359"),
    "torch_sum_under_ddp": ("divided by N", "facebookresearch/fairseq#494"),
    "torch_not_averaged": ("sum of means", "neuralmagic/sparseml#135"),
    "torch_scaled_lr": ("N times", "Lightning-AI/pytorch-lightning#3706"),
    "torch_around_ddp": ("one device", "jingyaogong/minimind#853"),
    "torch_head_outside": ("one device", "intel/e2eAIOK#198"),
    "torch_lost_sum": ("lost sum", ""),
    "torch_padding_sampler": ("repeated rows", "pytorch/pytorch#25162"),
    "torch_dropping_sampler": ("dropped rows", "pytorch/pytorch#41171"),
    "torch_idle_process": ("hangs", "NVIDIA-NeMo/Automodel#2468"),
    "torch_no_zero_grad": ("stale gradient", "pytorch/pytorch#47175"),
    "torch_pieces_summed": ("sum of pieces", "verl-project/verl#3332"),
    "torch_pieces_averaged": ("mean of pieces", "huggingface/transformers#24725"),
    "torch_pieces_zeroed": ("one piece", "huggingface/accelerate#1299"),
    "torch_pieces_not_summed": ("piece not summed", "modelscope/FunASR#3472"),
    "torch_clips_first": ("clipped first", "NVIDIA/Megatron-LM#1998"),
    "torch_norm_twice": ("norm twice", "modelscope/twinkle#290"),
    "torch_own_norm": ("own norm", "sgl-project/SpecForge#663"),
    "torch_clips_nothing": ("not clipped", "huggingface/transformers#46113"),
    "torch_half_hook": ("half precision", ""),
    "mxnet_step_of_shard": ("N times", "zackchase/mxnet-the-straight-dope#165"),
    "mxnet_step_of_one": ("not divided", "dmlc/gluon-nlp#872"),
    "mxnet_mean_loss": ("divided twice", "unslothai/unsloth-zoo#1023"),
    "mxnet_rebinding": ("stale replica", "discuss.d2l.ai/t/gpu/2800"),
    "mxnet_two_loops_in_one": ("apart", ""),
    "mxnet_grad_add": ("stale gradient", "apache/mxnet#16708"),
    "mxnet_idle_device": ("idle device", "apache/mxnet#13909"),
    "mxnet_norm_of_all": ("norm twice", "apache/mxnet#12859"),
    "mxnet_untied": ("untied", "facebookresearch/lingua#75"),
    "jax_grad_of_psum": ("sum of means", "jax-ml/jax#3970"),
    "jax_padded": ("padding", "marin-community/levanter#882"),
    "jax_padded_size": ("padded size", ""),
    "jax_clips_first": ("clipped first", "google/praxis#6"),
    "jax_late_gradient": ("old gradient", ""),
}
RIGHT = [
    "torch_ddp",
    "torch_allreduce",
    "torch_momentum",
    "torch_adam",
    "torch_tied",
    "mxnet_train_batch",
    "mxnet_lenet_concise",
    "mxnet_book",
    "mxnet_trainer",
    "jax_pmap",
    "jax_sharded",
    "jax_masked",
    "jax_batch_norm",
]
NOT_JUDGED = {
    "torch_dropout": ("", ""),
    "torch_kept_momentum": ("", ""),
    "torch_local_sgd": ("another algorithm", ""),
    "torch_adam_apart": ("another algorithm", ""),
    "mxnet_batch_norm": ("another algorithm", "apache/mxnet#5888"),
}
DEVICES = {"mxnet_two_loops_in_one": 3}  # all others: 2


def python_of(name: str) -> str:
    return PYTHON_WITH_JAX if name.startswith("jax_") else sys.executable


def needs(name: str) -> None:
    """Skip a test of a program whose framework is not here."""
    framework = name.split("_")[0]
    code = "from d2lpar import mx" if framework == "mxnet" else f"import {framework}"
    if subprocess.run([python_of(name), "-c", code], capture_output=True).returncode:
        pytest.skip(f"{framework} is not installed")


def judged(name: str) -> list:
    """The checks of a program."""
    from d2lpar.verify import Check

    command = [python_of(name), "-m", "d2lpar", "verify", f"{name}.py", "--json"]
    if name != "torch_idle_process":  # which hangs
        command += ["--timeout", "120"]
    command += ["--devices", str(DEVICES.get(name, 2))]
    done = subprocess.run(command, cwd=SUBJECTS, capture_output=True, text=True)
    return [Check(**check) for check in json.loads(done.stdout)]


def row(name: str, checks: list) -> str:
    """A row of the table: the program, what it does, a report, what the tool says."""
    tree = ast.parse((SUBJECTS / f"{name}.py").read_text("utf-8"))
    about = ast.get_docstring(tree).partition("\n")[0]
    link = f"[{name}](../tests/verify/subjects/{name}.py)"
    report = {**WRONG, **NOT_JUDGED}.get(name, ("", ""))[1]
    if report.startswith("discuss"):
        report = f" ([report](https://{report}))"
    elif report:
        address = f"https://github.com/{report.replace('#', '/issues/')}"
        report = f" ([{report}]({address}))"
    what, verdict, line, _ = checks[-1]
    if verdict in ("wrong", "unjudged"):
        said = f"*{what}*: {line}"
    else:
        right = [check.what for check in checks if check.verdict == "right"]
        rest = [check.what for check in checks if check.verdict == "skipped"]
        said = f"right in {len(right)} checks"
        skipped = ", ".join(what for what in rest if what not in right)
        said += f"; skipped: {skipped}" if skipped else ""
    return f"| {link}: {about}{report} | {said} |"


def main() -> None:
    text = PAGE.read_text("utf-8")
    for title, names in (("wrong", WRONG), ("right", [*RIGHT, *NOT_JUDGED])):
        head, start, rest = text.partition(f"<!-- programs: {title} -->\n")
        _, end, tail = rest.partition("<!-- end -->\n")
        rows = []
        for name in names:
            rows.append(row(name, judged(name)))
            print(rows[-1], flush=True)
        table = "\n".join(["| program | what `verify` says |", "|---|---|", *rows])
        text = f"{head}{start}\n{table}\n\n{end}{tail}"
    PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
