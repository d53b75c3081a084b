"""Every solution is right and within its target; what a learner gets wrong is said."""

import inspect
import itertools
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy
import pytest
from support import puzzle_solutions as solutions
from support.puzzle_solutions import (
    all_gather,
    central,
    grid,
    local_sgd,
    recursive_doubling,
    reduce_scatter,
    ring,
    tree,
)

from d2lpar import puzzles
from d2lpar.puzzles import checking, tasks
from d2lpar.puzzles.__main__ import main as listing
from d2lpar.puzzles.cases import PUZZLES, SCORED
from d2lpar.puzzles.hints import HINTS
from d2lpar.puzzles.interconnect import Network
from d2lpar.puzzles.schedules import Overlap

BUGS = {
    "rebinding": r"wrong with N = 2 and .* length 5: arrays\[1\] is .*, wanted is",
    "who_divides": r"wrong with counts = \[3, 2\]: its answer is .*, wanted is",
    "idle_device": r"wrong with shards of \[1, 0\].*: grads\[1\] is .*, wanted is",
    "clock": r"wrong with 5 s of work, .*: its answer is 0\., wanted is 5",
}


@pytest.fixture
def said(capsys):
    """The last line that check, or run, prints about what it finds wrong."""

    def said(solution, name, look=puzzles.check):
        if name:
            solution.__name__ = name
        assert not look(solution)
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 1 or look != puzzles.check
        return lines[-1]

    return said


@pytest.mark.parametrize("name", PUZZLES)
def test_a_solution_is_right_and_a_task_unsolved(name, capsys, said):
    solution, task = getattr(solutions, name), getattr(tasks, name)
    assert puzzles.check(solution)
    out = capsys.readouterr().out
    assert out.startswith(f"{name}: right")
    assert (" of " in out) == (name in SCORED)
    assert re.match(f"{name}: " + BUGS.get(name, "not solved yet$"), said(task, name))
    assert inspect.signature(task) == inspect.signature(solution)
    assert task.__doc__.startswith(f"{[*PUZZLES].index(name) + 1}. ")


def test_the_scores_are_those_of_docs_all_reduce(capsys):
    assert puzzles.check(central) and puzzles.check(tree) and puzzles.check(ring)
    scores = r"rounds (\d+) of \d+, .* busiest link ([\d.]+) of"
    found = re.findall(scores, capsys.readouterr().out)
    assert found == [("6", "3"), ("4", "2"), ("6", "1.5")]


def mean_of_variances(counts, means, variances):
    mean, _ = solutions.batch_norm(counts, means, variances)
    return mean, sum(c * v for c, v in zip(counts, variances)) / sum(counts)


def beyond_the_row(nx, ny, block, blockIdx, threadIdx):
    x, y = (b * size + t for b, size, t in zip(blockIdx, block, threadIdx))
    ij = nx * y + x
    return grid(nx, ny, block, blockIdx, threadIdx)[0], ij if ij < nx * ny else -1


def start_is_not_waited_for(work, wait, now):
    start = now()
    work()
    wait()
    return now() - start


def only_in_numpy(arrays, exchange):
    if hasattr(arrays[0], "device"):
        ring(arrays, exchange)


def number_by_number(arrays, exchange):
    for i in range(len(arrays[0])):
        total = sum(array[i] for array in arrays)
        for array in arrays:
            array[i] = total


def all_forward_first(num_stages, num_batches, run):
    for stages, what in (
        (range(num_stages), "forward"),
        (range(num_stages)[::-1], "backward"),
    ):
        for t in range(num_batches + num_stages - 1):
            at = [(s, what, t - i) for i, s in enumerate(stages)]
            run([work for work in at if 0 <= work[2] < num_batches])


def wait_for_each(num_layers, backward, send, wait):
    for l in reversed(range(num_layers)):
        backward(l)
        send(l)
        wait(l)


def all_layers_at_once(shards, buffers, gradients, lr, exchange):
    parts = solutions.split_unevenly(len(buffers[0]), len(buffers))
    layers = []
    for l in range(len(shards[0])):
        for shard, buffer, part in zip(shards, buffers, parts):
            buffer[part] = shard[l]
        all_gather(buffers, exchange)
        layers.append([buffer.copy() for buffer in buffers])
    for l, copies in enumerate(layers):
        grads = [gradient(l, w) for gradient, w in zip(gradients, copies)]
        reduce_scatter(grads, exchange)
        for shard, grad, part in zip(shards, grads, parts):
            shard[l][:] -= lr * grad[part]


def each_by_its_own_norm(shards, most, exchange):
    for shard in shards:
        shard *= numpy.minimum(1, most / numpy.sqrt((shard * shard).sum()))


def onto_the_step_before(grads, gradients, counts, exchange):
    for grad, gradient, of_device in zip(grads, gradients, counts):
        for m in range(len(of_device)):
            grad += gradient(m)
    ring(grads, exchange)
    for grad in grads:
        grad /= sum(map(sum, counts))


def all_reduce_each(grads, gradients, counts, exchange):
    for grad in grads:
        grad[:] = 0
    for m in range(max(map(len, counts))):
        parts = [
            gradient(m) if m < len(of_device) else 0 * grad
            for grad, gradient, of_device in zip(grads, gradients, counts)
        ]
        ring(parts, exchange)
        for grad, part in zip(grads, parts):
            grad += part / sum(map(sum, counts))


def masked_from_row_0(shards, seeds, draws, rate, exchange):
    for shard, seed, draw in zip(shards, seeds, draws):
        shard *= (draw(seed, 0, len(shard)) > rate) / (1 - rate)
    solutions.dropout([x[:0] for x in shards], seeds, draws, rate, exchange)


WRONG = r"wrong with [^:]*\d[^:]*: .*\bis .*, wanted is "
OVER = "right so far, but over its target with .*"


# fmt: off
@pytest.mark.parametrize(("name", "solution", "words"), [
    # plausible
    ("split_unevenly", lambda n, N: [slice(k * n // N, (k + 1) * n // N) for k in range(N)], WRONG),  # noqa: E501
    ("ring", lambda a, exchange: reduce_scatter(a, exchange), WRONG),
    ("reduce_scatter", lambda a, exchange: None, WRONG),
    ("zero1", lambda p, g, v, lr, e: solutions.zero1(p, g, v, lr / len(p), e), WRONG),
    ("clip", each_by_its_own_norm, WRONG + "|0 round.s. sent"),
    ("accumulate", onto_the_step_before, WRONG),
    ("tied", lambda g, exchange: ring(g, exchange), OVER + "rounds 2 of 1"),
    ("dropout", masked_from_row_0, WRONG),
    ("sync_bn_backward", lambda g, h, b, n, d, e: solutions.sync_bn_backward(g, h, b, n, 1, e), WRONG),  # noqa: E501
    ("local_sgd", lambda w, g, lr, T, H, e: local_sgd(w, g, lr, T, T, e), WRONG),
    ("batch_norm", mean_of_variances, WRONG),
    ("grid", beyond_the_row, WRONG),
    ("least_squares", lambda grams, xs: sum(xs) / len(xs), WRONG),
    ("clock", start_is_not_waited_for, WRONG),
    # wasteful
    ("reduce_scatter", lambda a, exchange: central(a, exchange), OVER + "rounds 2 of 1"),  # noqa: E501
    ("idle_device", lambda s, g, f: [g_k.__setitem__(..., f(s_k)) for s_k, g_k in zip(s, g)], "a shard of one sample or more"),  # noqa: E501
    ("tree", lambda a, exchange: ring(a, exchange), OVER + "rounds 6 of 4"),
    ("accumulate", all_reduce_each, OVER + r"rounds \d+ of \d"),
    ("fsdp", all_layers_at_once, OVER + "N = 2 .* held 7.8 of 5"),
    ("pipeline", all_forward_first, OVER + "rounds 12 of 12, bubbles 4 of 4, .*held 5 of 2"),  # noqa: E501
    ("overlap", wait_for_each, OVER + r"seconds (\d+) of (?!\1)"),
    ("overlap", lambda L, backward, send, wait: [backward(l) for l in range(L)[::-1]], WRONG),  # noqa: E501
    # against the rules
    ("fsdp", lambda s, b, g, lr, e: g[0](0, b[1]), "0. takes an array of device 0"),
    ("pipeline", lambda S, M, run: run([(0, "forward", 0), (1, "forward", 0)]), "stage 0 has not finished its forward"),  # noqa: E501
    ("pipeline", lambda S, M, run: [run([]) for _ in iter(int, 1)], "does a loop not|no answer in 20 s"),  # noqa: E501
    ("overlap", lambda L, backward, send, wait: backward(0), "layer 0 needs the gradi"),
    ("ring", lambda a, exchange: central(a, exchange), "device 1 sends to 0; in a ring to 2"),  # noqa: E501
    ("central", lambda a, exchange: ring(a, exchange), "device 1 sends to 2, not through"),  # noqa: E501
    ("tree", lambda a, exchange: recursive_doubling(a, exchange), "a tree sends"),
    ("ring", lambda a, e: e([(a[0], 0)]), "line .*: device 0 cannot send to 0"),
    ("ring", lambda a, e: ring(a, e) if len(a) < 3 else e([(a[1], 2), (a[2], 0), (a[0][:1], 1), (a[1], 2)]), "device 1 sends twice"),  # noqa: E501
    ("ring", lambda a, e: a[0] + a[1], "devices 0 and 1 do not share memory"),
    ("ring", number_by_number, "line .*: ValueError: devices 0 and 1 do not share"),
    ("tree", lambda a, e: [x.tolist() for x in a], "device 0's numbers are its own"),
    ("tree", lambda a, e: numpy.add.at(numpy.zeros(5), [0], a[0]), "numpy.add.at: use"),
    ("tree", lambda a, e: os._exit(0), "its process has ended"),
    ("tree", lambda a, e: sys.exit(0), "line .*: SystemExit: 0"),
    ("who_divides", lambda s, c: s[0].__iadd__(1), "leave the arguments as they are"),
    # of the wrong form
    ("split_unevenly", lambda n, N: None, "its answer is None: is there a `return`"),
    ("split_unevenly", lambda n, N: numpy.array_split(range(n), N), r"answer\[0\] is array\(.0, 1, 2.\), wanted is slice\(0, 3"),  # noqa: E501
    ("who_divides", lambda s, c: [str(x) for x in solutions.who_divides(s, c)], "its answer is .'"),  # noqa: E501
    ("split_unevenly", lambda n, N: [slice(n)], "has 1 elements, wanted are 2"),
    ("mine", lambda n: n, "mine is no puzzle: the puzzles are split_"),
])
def test_what_is_wrong_is_one_line(name, solution, words, said):
    assert re.search(words, said(solution, name))
# fmt: on


def clip_in_place(shards, most, exchange):
    totals = [(shard**2).sum() for shard in shards]  # arrays without axes
    for k in range(1, len(totals)):
        totals[0][...] += exchange([(totals[k], 0)])[0]
    for k in range(1, len(totals)):
        totals[k][:] = exchange([(totals[0], k)])[0]
    for shard, total in zip(shards, totals):
        shard[...] = shard * numpy.minimum(1, most / numpy.sqrt(total))


def dropout_by_a_mask(shards, seeds, draws, rate, exchange):
    distance = 1 << (len(seeds) - 1).bit_length()
    while distance > 1:
        distance //= 2
        to = range(distance, len(seeds), 2 * distance)
        for k, copy in zip(to, exchange([seeds[k - distance], k] for k in to)):
            seeds[k][...] = copy
    start = 0
    for shard, seed, draw in zip(shards, seeds, draws):
        shard[draw(seed, start, start + len(shard)) <= rate] = 0
        shard[:] /= 1 - rate
        start += len(shard)


@pytest.mark.parametrize("name, solution", [
    ("clip", clip_in_place),
    ("dropout", dropout_by_a_mask),
    ("who_divides", lambda s, c: list(map(float, sum(s) / sum(c)))),
    ("batch_norm", lambda *args: numpy.array(solutions.batch_norm(*args))),
])  # fmt: skip
def test_what_is_unusual_and_right_passes(name, solution, monkeypatch):
    monkeypatch.setattr(solution, "__name__", name)
    assert puzzles.check(solution)


def test_an_array_shows_what_it_is_and_hides_it_from_a_grader():
    array = Network(2).place(1, numpy.array([1.5, 2.0], "float32"))
    assert repr(array) == "<device 1, shape (2,), float32: [1.5 2. ]>"
    hidden = Network(2, shows=False).place(1, numpy.ones(2))
    assert repr(hidden) == "<device 1, shape (2,), float64>"


def test_what_a_solution_prints_is_seen(capfd):
    def central(arrays, exchange):
        print(arrays[0])

    puzzles.check(central)
    assert "<device 0, shape (5,), float32: [" in capfd.readouterr().out


def test_an_endless_loop_ends(capsys):
    def ring(arrays, exchange):
        while True:
            pass

    start = time.monotonic()
    assert not puzzles.check(ring, seconds=0.5)
    assert time.monotonic() - start < 10
    assert "no answer in 0.5 s" in capsys.readouterr().out


def test_the_sizes_are_those_of_the_tasks():
    tried = [n for n, _ in checking._sizes(numpy.random.default_rng())]
    page = Path(checking.__file__).parents[2] / "docs" / "puzzles.md"
    assert f"on one to eight devices, {len(tried)} times" in page.read_text("utf-8")
    assert "one to eight devices" in tasks.__doc__
    assert {*tried} == {*range(1, 9)}


def slices_written_otherwise(n, N):
    parts = solutions.split_unevenly(n, N)
    return [slice(p.start, None if p.stop == n else p.stop, 1) for p in parts]


def test_the_rows_of_a_slice_count_and_not_how_it_is_written():
    slices_written_otherwise.__name__ = "split_unevenly"
    assert puzzles.check(slices_written_otherwise)


def test_the_same_solution_runs_on_contexts(capsys):
    for solution in (ring, recursive_doubling, all_gather):
        assert puzzles.run(solution, "cpu:4", sizes=(3, 1000), repeats=3)
    times = r"cpu:4, (.*) numbers each: ring \d.* \(.*, n=3\) ms, d2lpar.allreduce \d"
    assert re.findall(times, capsys.readouterr().out) == ["3", "1,000"]


def test_what_cannot_be_timed(said):
    wrong = said(only_in_numpy, "ring", puzzles.run)
    assert "wrong on cpu(0), though right in NumPy" in wrong
    assert "run on devices" in said(solutions.clock, "clock", puzzles.run)
    assert "not solved yet" in said(tasks.ring, "ring", puzzles.run)
    on_no_device = said(ring, "ring", lambda ring: puzzles.run(ring, "cpu:x"))
    assert "write auto, cpu:N" in on_no_device


def test_the_list_says_which_are_solved(tmp_path, capsys):
    source = "def split_unevenly(n, N):\n    return [slice(n)]\n\n\ntree = central\n"
    file = tmp_path / "mine.py"
    file.write_text(Path(solutions.__file__).read_text("utf-8") + source)
    assert listing([]) == 0 and "20. How many" in capsys.readouterr().out
    assert listing([str(file)]) == 0
    out = capsys.readouterr().out
    assert "solved  recursive_doubling" in out and "        split_unevenly" in out
    assert "        tree" in out and "tree: not defined by `def tree(" in out
    assert listing([str(tmp_path / "none.py")]) == 2
    assert "none.py: no such file" in capsys.readouterr().out


def test_no_order_of_sending_is_faster_than_the_target():
    rng = numpy.random.default_rng(0)
    for _ in range(20):
        compute, seconds = rng.integers(1, 10, size=(2, 4)).tolist()
        times = []
        for order in itertools.permutations(range(4)):
            device, todo = Overlap(compute, seconds), list(order)
            for l in (3, 2, 1, 0):
                device.backward(l)
                while todo and todo[0] >= l:  # as early as this order allows
                    device.send(todo.pop(0))
            for l in range(4):
                device.wait(l)
            times += device.scores()
        assert min(times) == Overlap(compute, seconds).least()
    assert Overlap([3, 3], [2, 2]).least() == 8  # the example in tasks.py


def test_three_hints_one_after_another(capsys):
    assert HINTS.keys() == PUZZLES.keys()
    assert {len(set(hints)) for hints in HINTS.values()} == {3}
    for _ in range(5):
        puzzles.hint(ring)
    out = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in out[:3]] == [
        f"ring, hint {k} of 3" for k in (1, 2, 3)
    ]
    assert "these were all" in out[3] and out[4] == out[0]
    puzzles.hint("rong")
    assert "'rong' is no puzzle: the puzzles are split_" in capsys.readouterr().out


def test_a_picture_has_a_panel_per_round_and_an_arrow_per_message(capsys):
    pytest.importorskip("matplotlib")
    figure = puzzles.draw(ring, 3)
    assert figure._repr_png_().startswith(b"\x89PNG")  # what a notebook shows
    titles = [panel.get_title() for panel in figure.axes]
    assert titles == [f"round {k}" for k in (1, 2, 3, 4)]
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == ["0", "1", "2", "", "1/3", "", "1/3", "", "1/3"]

    def tree(arrays, exchange):
        exchange([(arrays[1], 0)])
        exchange([(arrays[1], 1)])

    assert len(puzzles.draw(tree).axes) == 2
    assert "line" in capsys.readouterr().out
    assert puzzles.draw(tasks.ring) is None and puzzles.draw(solutions.clock) is None
    out = capsys.readouterr().out
    assert "ring: not solved yet" in out and "clock: only central" in out
    for name in ("clip", "accumulate", "tied", "dropout", "sync_bn_backward"):
        assert puzzles.draw(getattr(solutions, name), 3).axes


def test_puzzles_need_numpy_only():
    blocked = "import sys; sys.modules['mxnet'] = sys.modules['matplotlib'] = None"
    code = f"{blocked}; from d2lpar import puzzles as p; print(p.check(p.check))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.endswith("False\n"), done.stderr
