"""Every solution is right and within its target; what a learner gets wrong is said."""

import ast
import inspect
import re

import numpy
import pytest
import solutions

import puzzles
from puzzles import tasks
from puzzles.cases import PUZZLES, TARGETS

ON_WRONG_SHAPE = r".*: wrong with [^:]*\d[^:]*: .* is .*, wanted is "
BUGS = {
    "rebinding": r"wrong with N = 2, 5 .*: arrays\[1\] is .*, wanted is",
    "who_divides": r"wrong with counts = \[3, 2\]: its answer is .*, wanted is",
    "idle_device": r"wrong with shards of \[1, 0\].*: grads\[1\] is .*, wanted is",
    "clock": r"wrong with 5 s of work, .*: its answer is 0\., wanted is 5",
}


@pytest.fixture
def said(capsys):
    """The one line that check prints about what is not right."""

    def said(solution, name):
        solution.__name__ = name
        assert not puzzles.check(solution)
        [line] = capsys.readouterr().out.splitlines()
        return line

    return said


@pytest.mark.parametrize("name", PUZZLES)
def test_a_solution_is_right_and_within_its_target(name, capsys):
    assert puzzles.check(getattr(solutions, name))
    out = capsys.readouterr().out
    assert out.startswith(f"{name}: right")
    assert ("rounds" in out) == (name in TARGETS)


@pytest.mark.parametrize("name", PUZZLES)
def test_a_task_is_unsolved_and_a_bug_is_found(name, said):
    task = getattr(tasks, name)
    wanted = BUGS.get(name, "not solved yet$")
    assert re.match(f"{name}: {wanted}", said(task, name))
    assert inspect.signature(task) == inspect.signature(getattr(solutions, name))
    assert task.__doc__.startswith(f"{[*PUZZLES].index(name) + 1}. ")


def test_tasks_do_not_show_solutions():
    solved = [f for f in vars(tasks).values() if inspect.isfunction(f)]
    assert len(solved) == 16 and set(BUGS) < set(PUZZLES)
    for function in solved:
        [_, *body] = ast.parse(inspect.getsource(function)).body[0].body
        assert function.__name__ in BUGS or isinstance(body[0], ast.Raise)


def test_the_scores_are_those_of_the_page_on_all_reduce(capsys):
    puzzles.check(solutions.central, solutions.tree, solutions.ring)
    out = capsys.readouterr().out
    scores = re.findall(r"rounds (\d+) of \d+, busiest link ([\d.]+) of", out)
    assert scores == [("6", "3"), ("4", "2"), ("6", "1.5")]


def mean_of_variances(counts, means, variances):
    mean = sum(c * m for c, m in zip(counts, means)) / sum(counts)
    return mean, sum(c * v for c, v in zip(counts, variances)) / sum(counts)


def beyond_the_row(nx, ny, block, blockIdx, threadIdx):
    blocks, ij = solutions.grid(nx, ny, block, blockIdx, threadIdx)
    x, y = (b * size + t for b, size, t in zip(blockIdx, block, threadIdx))
    return blocks, nx * y + x if nx * y + x < nx * ny else -1


def start_is_not_waited_for(work, wait, now):
    start = now()
    work()
    wait()
    return now() - start


def only_the_end_is_averaged(ws, gradients, lr, num_steps, steps_between, exchange):
    solutions.local_sgd(ws, gradients, lr, num_steps, num_steps, exchange)


PLAUSIBLE = {
    "split_unevenly": lambda n, N: [
        slice(k * n // N, (k + 1) * n // N) for k in range(N)
    ],
    "shard_gradients": lambda X, y, w, parts: [
        2 * X[p].T @ (X[p] @ w - y[p]) / max(1, len(y[p])) for p in parts
    ],
    "ring": lambda arrays, exchange: solutions.reduce_scatter(arrays, exchange),
    "reduce_scatter": lambda arrays, exchange: None,
    "zero1": lambda p, g, v, lr, exchange: solutions.zero1(p, g, v, lr / 2, exchange),
    "local_sgd": only_the_end_is_averaged,
    "batch_norm": mean_of_variances,
    "grid": beyond_the_row,
    "least_squares": lambda grams, xs: sum(xs) / len(xs),
    "clock": start_is_not_waited_for,
}


@pytest.mark.parametrize("name", PLAUSIBLE)
def test_a_plausible_mistake_is_found(name, said):
    assert re.match(ON_WRONG_SHAPE, said(PLAUSIBLE[name], name))


def all_at_device_0(arrays, exchange):
    copies = [exchange([(array, 0)])[0] for array in arrays[1:]]
    for copy in copies:
        arrays[0][:] += copy
    for k in range(1, len(arrays)):
        arrays[k][:] = exchange([(arrays[0], k)])[0]


@pytest.mark.parametrize(
    ("name", "solution", "score"),
    [
        ("ring", lambda a, exchange: solutions.central(a, exchange), "link 2 of 1.333"),
        ("tree", lambda a, exchange: solutions.ring(a, exchange), "rounds 6 of 4"),
        ("central", all_at_device_0, "memory 4 of 3"),
    ],
)
def test_a_score_over_the_target_is_said(name, solution, score, said):
    line = said(solution, name)
    assert line.startswith(f"{name}: right so far, but over its target with N = ")
    assert score in line


def to_itself(arrays, exchange):
    exchange([(arrays[0], 0)])


def twice_in_a_round(arrays, exchange):
    exchange([(arrays[0], 1), (arrays[0], 1)])


def no_pairs(arrays, exchange):
    exchange([arrays[0]])


def from_nowhere(arrays, exchange):
    exchange([(numpy.ones(2), 1)])


def without_end(arrays, exchange):
    while True:
        exchange([(arrays[0], 1)])


def add_a_neighbours(arrays, exchange):
    arrays[0][:] += arrays[1]


def copy_a_neighbours(arrays, exchange):
    arrays[0][:] = arrays[1]


def use_numpy(arrays, exchange):
    arrays[0][:] = numpy.concatenate(arrays)


@pytest.mark.parametrize(
    ("name", "solution", "words"),
    [
        ("ring", to_itself, "line .*: device 0 cannot send to 0"),
        ("ring", twice_in_a_round, "line .*: device 0 sends twice in one round"),
        ("ring", no_pairs, "line .*: exchange takes a list of pairs"),
        ("ring", from_nowhere, "line .*: .* is on no device"),
        ("ring", without_end, "line .*: more than .* rounds: does a loop not end"),
        ("ring", add_a_neighbours, "line .*: devices 0 and 1 do not share memory"),
        ("ring", copy_a_neighbours, "line .*: devices 0 and 1 do not share memory"),
        ("ring", use_numpy, "line .*: numpy.concatenate: use slices"),
        ("ring", lambda arrays: None, "takes 1 positional argument but 2 were"),
        (
            "split_unevenly",
            lambda n, N: None,
            "its answer is None: is there a `return`",
        ),
        ("split_unevenly", lambda n, N: n // N, "of type int, not a list"),
        ("split_unevenly", lambda n, N: [slice(n)], "has 1 elements, wanted are 2"),
        (
            "who_divides",
            lambda sums, counts: "7",
            r"\[3, 2\]: its answer is 7., wanted",
        ),
        ("who_divides", lambda sums, counts: "x", "its answer is 'x', wanted is"),
        ("who_divides", lambda s, c: s[0].__iadd__(1), "leave the arguments as they"),
        ("mine", lambda n: n, "mine is no puzzle: check takes functions called split_"),
    ],
)
def test_a_mistake_is_one_line(name, solution, words, said):
    assert re.search(words, said(solution, name))


def test_a_list_of_solutions_is_no_puzzle(capsys):
    assert not puzzles.check([solutions.ring])
    assert capsys.readouterr().out.startswith("list is no puzzle")


def test_the_same_solution_runs_on_contexts(capsys):
    for solution in (solutions.ring, solutions.tree, solutions.all_gather):
        assert puzzles.run(solution, "cpu:4", sizes=(3, 1000), repeats=3)
    out = capsys.readouterr().out
    times = r"cpu:4, (3|1,000) numbers each: {} \d.* \(.*, n=3\) ms, d2lpar.* ms"
    assert len(re.findall(times.format("ring"), out)) == 2


def right_in_numpy_only(arrays, exchange):
    if isinstance(arrays[0], numpy.ndarray):
        solutions.ring(arrays, exchange)


@pytest.mark.parametrize(
    ("name", "solution", "devices", "words"),
    [
        ("ring", right_in_numpy_only, "cpu:2", r"wrong on cpu\(0\), though right in"),
        ("ring", lambda *args: solutions.ring(*args), "cpu:x", "write auto, cpu:N"),
        ("clock", solutions.clock, "cpu:2", "only central, tree, .* run on devices"),
    ],
)
def test_what_cannot_be_timed(name, solution, devices, words, capsys):
    solution.__name__ = name
    assert not puzzles.run(solution, devices)
    assert re.search(words, capsys.readouterr().out.splitlines()[-1])
