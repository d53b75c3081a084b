"""The list of chapters against their scripts: what it says is what they accept."""

import ast
import sys

import click
import pytest

from d2lpar import chapter, datasets
from d2lpar.cli import main, options
from d2lpar.cli import run as cli_run
from d2lpar.cli.chapter_list import CHAPTERS, COMMON, as_word, ordered, refusals, unused
from d2lpar.datasets import punks

FILES = main.chapter_files()
EXAMPLES = {  # a value of each flag that is not in COMMON
    "threads": 1,
    "tf32": True,
    "deterministic": True,
    "num_epochs": 2,
    "global_batch_size": 8,
    "lr": 0.1,
    "micro_batch_size": 4,
    "sync_batch_norm": True,
    "frames_every": 2,
    "seed": 3,
    "repeats": 2,
    "data_dir": "absent",
    "checkpoint_every": 1,
    "resume": "last",
    "out": "here",
    "mp4": True,
    "watch": True,
    "profile": True,
}
LOCATE = {"fashion-mnist": datasets.locate, "cryptopunks": punks.locate, None: None}


def test_the_list_has_every_script_and_no_other():
    assert set(CHAPTERS) == set(FILES)
    assert list(FILES) == list(CHAPTERS)  # `d2lpar list` has its order, too


def test_numbers_ascend():
    numbers = [listed.number for listed in CHAPTERS.values()]
    assert numbers == sorted(set(numbers)) and numbers[0] == 1


def test_there_is_an_example_of_every_flag():
    @click.command()
    @options.run_options
    def command(**flags):
        pass

    flags = {option.name for option in command.params}
    assert flags == {*EXAMPLES, *COMMON, "data"}
    for listed in CHAPTERS.values():
        assert listed.takes <= set(EXAMPLES)


def last_cell(path):
    """A function that calls the script's `chapter.measure` or `chapter.show` again.

    Of the rest only the imports, functions and constants run, which takes no time.
    """
    namespace, call = {"__name__": "chapter"}, None
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        calls = [
            inner
            for inner in ast.walk(node)
            if isinstance(inner, ast.Call)
            and ast.unparse(inner.func) in ("chapter.measure", "chapter.show")
        ]
        if calls:
            (call,) = calls
        constant = (
            isinstance(node, ast.Assign) and ast.unparse(node.targets[0])[0].isupper()
        )
        if constant or isinstance(
            node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
        ):
            try:
                exec(compile(ast.Module([node], []), str(path), "exec"), namespace)
            except NameError:  # it is made of what the cells make
                continue
        elif isinstance(node, ast.If):  # constants may stand beside the last call
            for inner in node.body:
                if isinstance(inner, ast.Assign) and not calls == [inner.value]:
                    exec(compile(ast.Module([inner], []), str(path), "exec"), namespace)
    code = compile(ast.Expression(call), str(path), "eval")
    return lambda: eval(code, namespace)


@pytest.fixture(scope="module")
def cells():
    return {name: last_cell(path) for name, path in FILES.items()}


@pytest.fixture
def accepts(monkeypatch, capsys, tmp_path):
    """Whether a chapter's last call accepts a flag, and only then asks for devices."""
    monkeypatch.chdir(tmp_path)

    def accepts(call, flag, value):
        monkeypatch.setattr(sys, "argv", ["x", as_word(flag, value), "--devices=cpu:0"])
        with pytest.raises(SystemExit):
            call()
        said = capsys.readouterr().err
        assert ("cpu:0" in said) != (f"--{flag.replace('_', '-')}" in said), said
        return "cpu:0" in said

    return accepts


@pytest.mark.parametrize("name", FILES)
def test_the_list_says_what_the_last_cell_accepts(name, cells, accepts):
    taken = {
        flag for flag, value in EXAMPLES.items() if accepts(cells[name], flag, value)
    }
    assert taken == CHAPTERS[name].takes
    for flag, value in EXAMPLES.items():
        assert (flag in unused(name, {flag: value})) == (flag not in taken)


@pytest.mark.parametrize("name", FILES)
def test_the_list_names_its_data_and_whether_workers_share_it(name, cells, monkeypatch):
    found = []
    monkeypatch.setattr(cli_run, "run_sweep", lambda chapter, *_: found.append(chapter))
    monkeypatch.setattr(
        chapter, "show", lambda name, call, takes=(): found.append(None)
    )
    monkeypatch.setattr(sys, "argv", ["x"])
    cells[name]()
    (measured,) = found
    if measured is None:
        assert CHAPTERS[name].data is None and not CHAPTERS[name].workers
        return
    assert measured.workload.locate is LOCATE[CHAPTERS[name].data]
    alone = measured.workload.train_with_workers is None or len(measured.variants) > 1
    assert CHAPTERS[name].workers == (not alone)


def test_a_chapter_of_ones_own_comes_last_and_says_itself_what_it_takes():
    assert ordered(["zeta", "gan", "alpha", "devices"]) == [
        *("devices", "gan"),
        *("alpha", "zeta"),
    ]
    assert unused("zeta", {"mp4": True}) == {}
    assert list(refusals("zeta", {"mp4": True, "seed": 1}, {"seed"})) == ["mp4"]


def test_a_chapter_that_shows_gets_the_flags_that_it_takes(monkeypatch):
    got = []
    monkeypatch.setattr(sys, "argv", ["x", "--seed=3", "--devices=cpu:2"])
    chapter.show("x", lambda *devices, **flags: got.append((devices, flags)), ["seed"])
    (((devices,), flags),) = got
    assert len(devices) == 2
    assert flags == {"preset": "quick", "dry_run": False, "seed": 3}
