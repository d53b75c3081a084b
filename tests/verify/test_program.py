"""`d2lpar verify --run`: a whole program of PyTorch, as it is."""

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy
import programs
import pytest

from d2lpar.errors import RunError
from d2lpar.verify import Check
from d2lpar.verify.torch.program import (
    check_program,
    check_rows,
    judge_program,
    with_arguments,
)

TRAIN = "whole_torch.py --batch-size 64"


def test_arguments_are_replaced_or_added():
    given = ["train.py", "--batch", "64", "--lr=0.1"]
    assert with_arguments(given, ["--batch", "32", "--lr=0.2", "--fast"]) == [
        "train.py", "--batch", "32", "--lr=0.2", "--fast"
    ]  # fmt: skip
    assert with_arguments(given, []) == given


ROWS = Check("rows", "right", "")


def recorded(gradient, lr=0.1, rows=(1, 2, 3, 4), start=1, decay=0, last=1, labels=()):
    """What a process records of three steps of SGD, which have `last` as their end."""
    g = numpy.asarray(gradient, float)
    calls = [[numpy.asarray(rows, float).reshape(-1, 1)], [numpy.asarray(labels)]]
    return {
        "params": [start * numpy.ones(3) - k * lr * g for k in range(4)],
        "moves": [-lr * (g + decay)] * 3,
        "grads": [g] * 3,
        "lr": [[lr], [lr], [lr * last]],
        "calls": calls[: 1 + bool(len(labels))] * 3,
        "calls_before": [1 + bool(len(labels)), 4, 6] if len(labels) else [1, 2, 3],
        "flags": {"loss"},
    }


@pytest.mark.parametrize("many, mistake", [
    ([recorded([1, 2, 3])] * 2, ""),
    ([recorded([2, 4, 6])] * 2, "N times"),
    ([recorded([0.5, 1, 1.5])] * 2, "divided by N"),
    ([recorded([1.1, 2.2, 3.3])] * 2, "factor"),
    ([recorded([1, 2, 3], lr=0.2)] * 2, "N times"),
    ([recorded([1, 2, 3]), recorded([1, 2, 4])], "apart"),
    ([recorded([1, 2, 3]), recorded([1, 2, 3], start=2)], "apart"),
    (
        [recorded([1, 2, 4], labels=n * [1] + [-100]) for n in (3, 5)],
        "mean of means of tokens",
    ),
])  # fmt: skip
def test_a_factor_of_the_program_names_itself(many, mistake):
    checks = check_program(recorded([1, 2, 3]), many, many, ROWS)
    wrong = [check.mistake for check in checks if check.verdict == "wrong"]
    assert (wrong or [""])[0] == mistake
    assert {check.verdict for check in checks} <= {"right", "wrong", "skipped"}


@pytest.mark.parametrize("how, what, said", [
    ({"last": 0.9}, "the learning rate", "0.9 times as large on 2 processes in step 3"),
    ({"decay": 1}, "step 1", "is weight decay or momentum equal"),
])  # fmt: skip
def test_equal_gradients_may_be_wrong_steps(how, what, said):
    many = [recorded([1, 2, 3], **how)] * 2
    for check in check_program(recorded([1, 2, 3]), many, many, ROWS):
        assert check.verdict == "wrong" and said in check.line or check.what != what


def test_a_rate_that_grows_with_the_batch_is_no_mistake():
    many = [recorded([1, 2, 3], lr=0.2, rows=rows) for rows in ([1, 2], [3, 4])]
    one = recorded([1, 2, 3], rows=[5, 6])
    checks = check_program(one, many, many, check_rows(one, many))
    assert {check.verdict for check in checks} == {"right", "skipped"}


@pytest.mark.parametrize("rows, verdict, mistake", [
    (([1, 2], [3, 4]), "right", ""),
    (([1, 2], [1, 2]), "wrong", "same rows"),
    (([1, 2, 3], [4, 1]), "wrong", "repeated rows"),
    (([1, 2], [3]), "wrong", "dropped rows"),
    (([1, 2], [2, 3]), "wrong", "repeated rows"),
    (([1, 2], [6, 7]), "skipped", ""),
    (([1, 2, 3, 4], [5, 6, 7, 8]), "skipped", "larger batch"),
])  # fmt: skip
@pytest.mark.parametrize("k", [0, 1])
def test_the_rows_of_each_step_are_compared(rows, verdict, mistake, k):
    one, many = recorded([1]), [recorded([1], rows=own) for own in rows]
    for file, own in zip(many, ([1, 2], [3, 4])):
        file["calls"] = recorded([1], rows=own)["calls"][:k] + file["calls"][k:]
    check = check_rows(one, many)
    assert (check.verdict, check.mistake) == (verdict, mistake)


def test_padding_is_no_part_of_a_row():
    one, *many = (recorded([1]) for _ in range(3))
    one["calls"] = [[numpy.array([[1, 2, 0, 0], [3, 4, 5, 6]])]] * 3
    many[0]["calls"] = [[numpy.array([[1, 2]])]] * 3
    many[1]["calls"] = [[numpy.array([[3, 4, 5, 6]])]] * 3
    assert check_rows(one, many).verdict == "right"


def test_noise_of_its_own_is_given_to_the_single_process():
    one, *many = (recorded([1], rows=rows) for rows in ([1, 2, 3, 4], [1, 2], [3, 4]))
    for k, file in enumerate((one, *many)):
        rows = file["calls"][0][0]
        file["calls"] = [[rows, rows + 0.5 * k]]
        file["calls_before"] = [1]
    assert check_rows(one, many).verdict == "skipped"


@pytest.mark.parametrize("k, size, split, first", [
    (0, (4, 6), False, 0), (1, (4,), False, 10), (2, (3,), False, 1),
    (1, (2,), True, 10), (3, (2, 6), True, 1), (4, (2,), True, 11),
    (7, (2,), True, 30), (9, (2, 6), True, 21),
])  # fmt: skip
def test_a_single_process_gets_what_all_had(k, size, split, first):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from d2lpar.verify.torch.prelude import Recorder

    def tensors(rank):  # two steps, each of a model and a loss with weights
        return [
            numpy.full((2, 6), rank), numpy.full(2, 10 + rank), numpy.ones(3),
            numpy.full((2, 6), 20 + rank), numpy.full(2, 30 + rank), numpy.ones(3),
        ]  # fmt: skip

    replayed = [tensors(0), tensors(1)]
    recorder = SimpleNamespace(replayed=replayed, split=split, each=3)
    new = Recorder.recorded(recorder, torch.ones(size), k)
    assert (new.shape, new.flatten()[0]) == (size, first)


def test_attention_stays_causal_without_dropout():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from d2lpar.verify.torch.prelude import ATTENTION, without_dropout

    q = torch.randn(1, 4, 3)
    assert torch.equal(
        without_dropout(q, q, q, None, 0.5, True), ATTENTION(q, q, q, is_causal=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("flag, what, said", [
    ("", "summary", "8 of 8 checks right"),
    ("--own-rows", "summary", "7 of 7 checks right; not judged: rows"),
    ("--same-rows", "rows", "each process gets the same rows"),
    ("--scale-rate", "the learning rate", "2 times as large on 2 processes"),
    ("--closure", "summary", "8 of 8 checks right"),
    ("--compile", "summary", "8 of 8 checks right"),
    ("--scale-rate", "step 1", "2 move 2.0000 times as far as 1"),
    ("--around", "replicas", "is the wrapped module called"),
])  # fmt: skip
def test_a_program_is_judged_as_it_is(flag, what, said, monkeypatch):
    programs.needs("torch")
    monkeypatch.chdir(programs.SUBJECTS)
    checks = judge_program(f"{TRAIN} {flag}", 2, "--batch-size 32")
    (line,) = [check.line for check in checks if check.what == what]
    assert said in line


SPAWNS = """
import sys, torch
from torch import distributed, multiprocessing, nn

def main(rank, size):
    distributed.init_process_group("nccl", rank=rank, world_size=size)
    torch.manual_seed(0)
    X, nets = torch.randn(4, 3).chunk(size)[rank], [nn.Linear(3, 1), nn.Linear(3, 1)]
    nets = [nn.parallel.DistributedDataParallel(net) for net in nets]
    for _ in range(4):
        for net, loss in zip(nets, (torch.mean, torch.sum)):
            optimizer = net.__dict__.setdefault("o", torch.optim.SGD(net.parameters()))
            optimizer.zero_grad()
            loss(net(X) ** 2).backward()
            optimizer.step()
            torch.save(net.state_dict(), "net.pt")
            net.load_state_dict(torch.load("net.pt")) if size == 1 else None

if __name__ == "__main__":
    multiprocessing.spawn(main, (int(sys.argv[2]),), int(sys.argv[2]))
"""


@pytest.mark.slow
def test_a_program_may_spawn_save_and_have_two_optimizers(tmp_path, monkeypatch):
    programs.needs("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SPAWNS)
    checks = judge_program("train.py --gpus 1", 2, "--gpus 2")
    wrong = {check.what: check.mistake for check in checks if check.verdict == "wrong"}
    names = {f"optimizer 2: step {k}": "divided by N" for k in (1, 2, 3)}
    assert wrong == {**names, "summary": "divided by N"}
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.slow
def test_a_program_that_fails_has_one_line(tmp_path, monkeypatch):
    programs.needs("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise ValueError('no data')")
    with pytest.raises(RunError, match="no step of an optimizer: ValueError: no data"):
        judge_program("train.py")
    with pytest.raises(RunError, match="is no file: let --run begin with the script"):
        judge_program("torchrun --nproc-per-node 2 train.py")
    command = [sys.executable, "-m", "d2lpar", "verify", "--run", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
