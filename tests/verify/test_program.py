"""`d2lpar verify --run`: what is compared of a whole program of PyTorch."""

from types import SimpleNamespace

import numpy
import pytest
from click.testing import CliRunner

from d2lpar.cli.main import d2lpar
from d2lpar.errors import D2lparError
from d2lpar.verify import Check
from d2lpar.verify.program import check_program, check_rows, judge_program


def recorded(gradient, lr=0.1, rows=(1, 2, 3, 4), start=1, decay=0, last=1, labels=()):
    """What a process records of three steps of SGD, which have `last` as their end."""
    g = numpy.repeat(numpy.asarray(gradient, float), 3)
    data = [numpy.asarray(rows, float).reshape(-1, 1), numpy.asarray(labels)]
    first, move = start * numpy.ones_like(g), -lr * (g + decay)
    return [
        SimpleNamespace(
            optimizer=0,
            names=[("body", len(g) - 3), ("head", 3)],
            rates=[lr * (last if k == 2 else 1)],
            start=first + k * move if k else first,
            grads=g,
            end=first + (k + 1) * move,
            data=data[: 1 + bool(len(labels))],
            flags={"loss"},
        )
        for k in range(3)
    ]


@pytest.mark.parametrize("many, mistake, said", [
    ([recorded([1, 2, 3])] * 2, "", ""),
    ([recorded([2, 4, 6])] * 2, "N times", "sums are taken for means"),
    ([recorded([0.5, 1, 1.5])] * 2, "divided by N", "by 2 once too often"),
    ([recorded([1.1, 2.2, 3.3])] * 2, "factor", "1.1000 times as long"),
    ([recorded([1, 2, 4.5])] * 2, "factor", "1.5000 times as long, in head"),
    ([recorded([1, 2, numpy.nan])] * 2, "not finite", "nan or infinite"),
    ([recorded([1, 2, 3], lr=0.2)] * 2, "N times", "the learning rate is 2 times"),
    ([recorded([1, 2, 3], last=0.9)] * 2, "", "the learning rate is 0.9 times"),
    ([recorded([1, 2, 3], decay=1)] * 2, "", "is weight decay or momentum equal"),
    ([recorded([1, 2, 3]), recorded([1, 2, 4])], "apart", "in head. Gradients differ"),
    ([recorded([1, 2, 3]), recorded([1, 2, 3], decay=1)], "apart",
     "from here on. Gradients are equal, so the optimizers differ"),
    ([recorded([1, 2, 3]), recorded([1, 2, 3], start=2)], "apart", "broadcast"),
    ([recorded([1, 2.5, 4], labels=n * [1] + [-100]) for n in (3, 5)], "own tokens",
     "own number of labels (3, 5)"),
])  # fmt: skip
def test_what_several_processes_do_otherwise_has_a_name(many, mistake, said):
    rows = Check("rows", "right", "")
    checks = check_program(recorded([1, 2, 3]), many, rows)
    wrong = [check for check in checks if check.verdict == "wrong"]
    assert bool(wrong) == bool(said)
    assert not wrong or wrong[0].mistake == mistake and said in wrong[0].line
    assert {check.verdict for check in checks} <= {"right", "wrong"}


@pytest.mark.parametrize("rows, verdict, mistake", [
    (([1, 2], [3, 4]), "right", ""),
    (([1, 2], [1, 2]), "wrong", "same rows"),
    (([1, 2, 3], [4, 1]), "wrong", "repeated rows"),
    (([1, 2], [3]), "wrong", "dropped rows"),
    (([1, 2], [2, 3]), "wrong", "repeated rows"),
    (([1, 2], [6, 7]), "skipped", "other rows"),
    (([1, 2, 3, 4], [5, 6, 7, 8]), "skipped", "larger batch"),
])  # fmt: skip
@pytest.mark.parametrize("k", [0, 1])
def test_the_rows_of_each_step_are_compared(rows, verdict, mistake, k):
    one, many = recorded([1]), [recorded([1], rows=own) for own in rows]
    for steps, own in zip(many, ([1, 2], [3, 4])):
        steps[:k] = recorded([1], rows=own)[:k]
    check = check_rows(one, many)
    assert (check.verdict, check.mistake) == (verdict, mistake)


@pytest.mark.parametrize("one, many, verdict", [
    ([[[1, 2, 0, 0], [3, 4, 5, 6]]], [[[[1, 2]]], [[[3, 4, 5, 6]]]], "right"),
    ([[1, 2], [3, 4]], [[[1, 4]], [[2, 3]]], "right"),
    ([[1, 2], [5, 6]], [[[1], [7]], [[2], [8]]], "skipped"),
    ([[1, 2], [0, 0]], [[[1], [0, 0]], [[2], [0, 0]]], "right"),
], ids=["padding", "pieces", "noise", "weights"])  # fmt: skip
def test_all_tensors_are_compared_without_padding(one, many, verdict):
    one, *many = (
        [SimpleNamespace(data=[numpy.array(leaf) for leaf in leaves])]
        for leaves in (one, *many)
    )
    assert check_rows(one, many).verdict == verdict


@pytest.mark.parity
def test_attention_stays_causal_without_dropout():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from d2lpar.verify.record import ATTENTION, without_dropout

    q = torch.randn(1, 4, 3)
    assert torch.equal(
        without_dropout(q, q, q, None, 0.5, True), ATTENTION(q, q, q, is_causal=True)
    )


LOOP = """
import torch
from torch import distributed, multiprocessing, nn

def main(rank, size):
    distributed.init_process_group("nccl", rank=rank, world_size=size)
    torch.manual_seed(0)
    X, net = torch.randn(8, 3)[rank * 4 :][:4], nn.Linear(3, 1)
    net = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(4):
        optimizer.zero_grad()
        torch.mean(net(X) ** 2).backward()
        optimizer.step()
        torch.save(net.state_dict(), "net.pt")

if __name__ == "__main__":
    multiprocessing.spawn(main, (torch.cuda.device_count(),), torch.cuda.device_count())
"""


@pytest.mark.slow
@pytest.mark.parity
def test_a_batch_that_grew_needs_arguments_and_checkpoints_stay(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(LOOP)
    rows, summary = judge_program("train.py")
    assert summary.verdict == "unjudged" and rows.mistake == "larger batch"
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize("words, said", [
    (["--run", ""], "'' is no file: let --run begin with the script"),
    (["--run", "'train.py"], "No closing quotation"),
])  # fmt: skip
def test_a_command_that_cannot_run_has_one_line(words, said):
    with pytest.raises(D2lparError, match=said) as error:
        CliRunner().invoke(d2lpar, ["verify", *words], catch_exceptions=False)
    assert error.value.exit_code == 2 and "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("text, said", [
    ("raise ValueError('no data')", "no three steps of .* 'ValueError: no"),
    ("print('hello')", "Does this command train, .* It printed 'hello'"),
])  # fmt: skip
def test_a_program_without_a_step_says_what_to_do(text, said, tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(text)
    with pytest.raises(D2lparError, match=said):
        judge_program("train.py")
