"""Wrong commands, as tables: each is one line on standard error that names the value.

All run in this process, as `d2lpar` does them: exit code 2, and nothing is written.
"""

import os

import click
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.factories import epoch, header

from d2lpar import devices, process
from d2lpar.cli import main, run
from d2lpar.experiments import ALWAYS, EXPERIMENTS
from d2lpar.machine import builds
from d2lpar.machine.gpus import CudaDevice
from d2lpar.records import files

LENET = ["run", "multiple_gpus", "--data=sample", "--devices=cpu:1", "--dry-run"]
SOLVER = ["run", "least_squares", "--devices=cpu:1", "--dry-run"]
LAUNCH = ["launch", "--print"]
THEN = ["--", "run", "multiple_gpus_concise"]

REFUSED = [
    # Values out of range
    ([*LENET, "--threads=100000"], "100000 is not in the range 1<=x<=1024"),
    ([*LENET, f"--global-batch-size={2**31}"], str(2**31)),
    ([*LENET, "--num-epochs=0"], "--num-epochs"),
    ([*LENET, f"--seed={2**64}"], "--seed"),
    ([*LENET, "--lr=nan"], "--lr"),
    ([*LENET, "--lr=1e-300"], "1e-300 is not in the range 1e-12<=x<="),
    (["run", "gan", "--frames-every=0"], "--frames-every"),
    (["sample", "--checkpoint=x", "--n=100000"], "100000"),
    (["sample", "--checkpoint=x", "--scale=3000"], "3,000"),
    ([*LAUNCH, "--timeout=nan", *THEN], "nan"),
    ([*LAUNCH, "--workers=0", *THEN], "--workers"),
    ([*LAUNCH, "--port=65536", *THEN], "65536"),
    ([*LAUNCH, "--compress=1e-50", *THEN], "--compress"),
    # Empty values, such as unset shell variables
    ([*LENET, "--out="], "--out"),
    (["plot", ""], "RECORDS"),
    # Flags that do not apply, or contradict each other
    ([*LENET, "--sync-batch-norm"], "--sync-batch-norm: does not apply to"),
    (["run", "devices", "--tf32"], "--tf32: does not apply to devices"),
    (["run", "memory", "--resume=last"], "--resume last: does not apply to memory"),
    (["run", "memory", "--data=cryptopunks"], "--data cryptopunks: memory takes auto"),
    (["run", "scaling", "--num-epochs=3"], "--num-epochs 3: scaling trains nothing"),
    (["run", "arrays", "--preset=sharp"], "--preset sharp: arrays takes quick, book"),
    (["run", "gan", "--data=sample"], "--data sample: gan takes auto, cryptopunks"),
    ([*SOLVER, "--lr=0.1"], "--lr 0.1: does not apply to least_squares"),
    ([*LENET, "--tf32"], "--tf32 with --devices cpu:1"),
    ([*LENET, "--resume=last", "--repeats=2"], "--resume with --repeats"),
    ([*LENET, "--data-dir=."], "--data-dir . with --data sample"),
    ([*LENET, "--depth=3"], "--depth"),
    ([*LAUNCH, *THEN, "--repeats=2"], "one thing at a time"),
    ([*LAUNCH, *THEN, "--num-devices=1,2"], "one thing at a time"),
    ([*LAUNCH, *THEN, "--sync-batch-norm"], "--sync-batch-norm: does not apply"),
    ([*LAUNCH, "--", "run", "gan"], "gan is not shared"),
    ([*LAUNCH, "--", "plot", "x"], "plot x"),
    (LAUNCH, "launch"),
    ([*LAUNCH, "--ssh=ssh -p 22", *THEN], "--ssh ssh -p 22"),
    (["launch", "--python=nope", *THEN], "--python nope"),
    (["compare", "record", "record", "--lr=0.1"], "--lr"),
    (["compare", "record"], "'B'"),
    # A chapter in place of a command, a flag in place of the chapter
    (["multiple-gpus", "--lr=1"], "write d2lpar run multiple_gpus"),
    (["run", "--chapter=4"], "Usage: d2lpar run [OPTIONS] CHAPTER"),
    # Names that a terminal would obey, or that no record can hold
    ([*LENET, "--out=b\udcff"], r"'b\udcff' is not UTF-8"),
    (["plot", "\x1b[31mx.jsonl"], r"\x1b[31mx.jsonl"),
    # Chapters and devices that are not there
    (["run", "multiple"], "'multiple'"),
    ([*LENET, "--devices=tpu:1"], "tpu:1"),
    ([*LENET, "--devices=cpu:0"], "cpu:0"),
    ([*LENET, "--devices=cpu:2,gpu:1"], "cpu:2,gpu:1"),
    ([*LENET, "--devices=cpu:100000000"], "cpu:100000000"),
    ([*LENET, "--devices=gpu:250,"], "gpu:250"),
    ([*LENET, "--num-devices=two"], "two"),
    ([*LENET, "--num-devices=4"], "4"),
    # Files and folders
    ([*LENET, "--out=record"], "record: Not a directory"),
    ([*LENET, "--out=/dev/full"], "/dev/full"),
    ([*LENET, "--out=/proc"], "/proc/multiple_gpus: Permission denied"),
    ([*LENET, "--out=loop"], "loop"),
    (["run", "multiple_gpus", "--data-dir=nope"], "--data-dir nope"),
    (["plot", "absent"], "absent"),
    (["plot", "/dev/zero"], "/dev/zero"),
    (["plot", "."], ".: "),
    (["plot", "binary"], "binary"),
    (["plot", "empty"], "empty"),
    (["plot", "header"], "header: holds no results"),
    (["plot", "escape"], "escape, line 1"),
    (["plot", "record", "--out=/dev/null"], "/dev/null"),
    (["compare", "absent", "absent"], "absent"),
    (["compare", "record", "header"], "header: holds no epochs"),
    (["sample", "--checkpoint=absent"], "absent"),
    (["sample", "--checkpoint=binary"], "binary"),
    ([*LAUNCH, "--hosts=option", "--interface=x", *THEN], "-oProxyCommand=x"),
    ([*LAUNCH, "--hosts=empty", "--interface=x", *THEN], "empty"),
    ([*LAUNCH, "--hosts=absent", *THEN], "absent"),
]
CONTENT = {
    "binary": b"\x89PNG\xff\xfe\x00",
    "empty": b"",
    "option": b"-oProxyCommand=x\n",
    "escape": b'{"kind": "header", "chapter": "\\u001b[2J"}\n',
    "header": f"{files.to_line(header())}\n".encode(),
    "record": f"{files.to_line(header())}\n{files.to_line(epoch(1))}\n".encode(),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused")
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)
    (folder / "loop").symlink_to("loop")
    return folder


@pytest.fixture
def answer(folder, monkeypatch, capfd):
    """A function: what `d2lpar WORDS` prints on standard error, and its exit code."""

    def answer(words):
        monkeypatch.chdir(folder)
        monkeypatch.delenv("D2LPAR_DATA", raising=False)
        monkeypatch.setattr("sys.argv", ["d2lpar", *words])
        with pytest.raises(SystemExit) as ended:
            main.main()
        return capfd.readouterr().err, ended.value.code

    return answer


def name_of(value):
    return ascii(" ".join(value))[1:60] if isinstance(value, list) else ""


@pytest.mark.parametrize(("words", "value"), REFUSED, ids=name_of)
def test_one_line_names_the_value_and_nothing_is_written(answer, folder, words, value):
    error, code = answer(words)
    assert code == 2, error
    assert error.startswith("d2lpar: ") and error.count("\n") == 1, error
    assert value in error
    assert set(os.listdir(folder)) == {*CONTENT, "loop"}


def test_without_mxnet_a_run_is_refused_before_it_begins(answer, folder, monkeypatch):
    monkeypatch.setattr(builds, "installed_builds", dict)
    error, code = answer(["run", "multiple_gpus"])
    assert code == 2 and error.startswith("d2lpar: MXNet is not installed: pip install")
    assert error.count("\n") == 1 and set(os.listdir(folder)) == {*CONTENT, "loop"}


@pytest.mark.parametrize("number", ["0", "abc"])
def test_a_worker_that_no_launcher_has_started(answer, monkeypatch, number):
    monkeypatch.setenv("D2LPAR_WORKER", number)
    error, code = answer(LENET)
    assert code == 2 and error.startswith(f"d2lpar: D2LPAR_WORKER '{number}': only ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("words", [["--devices=gpu:1"], ["--devices=gpu"]])
def test_a_gpu_without_code_is_refused_before_a_child_starts(
    answer, folder, monkeypatch, words
):
    h200 = CudaDevice("NVIDIA H200", (9, 0))
    monkeypatch.delenv("MXNET_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(devices, "cuda_devices", lambda: [h200])
    monkeypatch.setattr(builds, "installed_builds", lambda: {"mxnet-cu112": "1.9.1"})
    monkeypatch.setattr(process, "raw_lines", pytest.fail)
    error, code = answer(["run", "multiple_gpus", "--data=sample", *words])
    assert code == 2 and "gpu(0) NVIDIA H200 has compute capability 9.0" in error
    assert error.count("\n") == 1 and set(os.listdir(folder)) == {*CONTENT, "loop"}


RANGES = [
    pytest.param(command, option, id=f"{name} --{option.name}")
    for name, command in main.d2lpar.commands.items()
    for option in command.params
    if isinstance(option.type, (click.IntRange, click.FloatRange))
]


@pytest.mark.parametrize(("command", "option"), RANGES)
def test_the_words_of_a_range_are_true(command, option):
    """Both ends that a refusal names are accepted, and what is beyond is refused."""
    ctx, low, high = click.Context(command), option.type.min, option.type.max
    whole = isinstance(option.type, click.IntRange)
    named = f"x>={low}" if high is None else f"{low}<=x<={high}"
    ends = [low] if high is None else [low, high]
    beyond = [low - 1 if whole else low / 2]
    if high is not None:
        beyond.append(high + 1 if whole else 2 * high)
    for value in ends:
        assert option.process_value(ctx, str(value)) == value
    for value in beyond:
        with pytest.raises(click.BadParameter) as refused:
            option.process_value(ctx, str(value))
        assert refused.value.message == f"{value} is not in the range {named}."
    for value in () if whole else ("nan", "inf", "-inf"):
        with pytest.raises(click.BadParameter):
            option.process_value(ctx, value)


PATHS = [
    pytest.param(option, id=f"{name} --{option.name}")
    for name, command in main.d2lpar.commands.items()
    for option in command.params
    if isinstance(option, click.Option)
    and option.name in ("out", "data_dir", "resume", "checkpoint", "logs", "directory")
]


@pytest.mark.parametrize("option", PATHS)
def test_a_path_after_an_equals_sign_may_be_in_the_home_folder(option, monkeypatch):
    """A shell expands `--out ~/x` but not `--out=~/x`."""
    monkeypatch.setenv("HOME", "/home/ana")
    value = option.process_value(click.Context(main.run), "~/x")
    assert str(value) == "/home/ana/x"


FLAGS = sorted(ALWAYS.union(*(e.takes for e in EXPERIMENTS.values()), {"nope"}))
VALUES = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(["auto", "cpu:2", "gpu:1", "1,2", "quick", "sample", "last"]),
)


@settings(max_examples=60, deadline=None)
@given(
    chapter=st.sampled_from([*EXPERIMENTS, "all", "nope"]) | VALUES,
    flags=st.dictionaries(st.sampled_from(FLAGS), st.none() | VALUES, max_size=3),
)
@example(chapter="all", flags={"lr": "0.1", "sync_batch_norm": None})
def test_any_command_line_runs_or_is_refused_in_a_line(chapter, flags):
    words = [f"--{flag}".replace("_", "-") for flag in flags]
    words = [w if v is None else f"{w}={v}" for w, v in zip(words, flags.values())]
    ran = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["d2lpar", "run", chapter, *words])
        patch.setattr(run, "run_experiment", lambda *args: ran.append(args) or [])
        said = []
        patch.setattr("click.echo", lambda message="", **how: said.append(message))
        try:
            main.main()
            code = 0
        except SystemExit as ended:
            code = ended.code
    if code == 0:
        assert ran or any("Usage" in text for text in said)
    else:
        assert code == 2 and not ran
        assert len(said) == 1 and "\n" not in said[0]


def test_all_gives_each_flag_to_those_it_applies_to(monkeypatch, caplog):
    ran = {}

    def run_experiment(experiment, flags, command):
        ran[experiment.name] = flags, command
        return []

    monkeypatch.setattr(run, "run_experiment", run_experiment)
    words = ["run", "all", "--seed=3", "--data=cryptopunks", "--sync-batch-norm"]
    words.append("--devices=cpu:2")
    monkeypatch.setattr("sys.argv", ["d2lpar", *words])
    with caplog.at_level("WARNING", logger="d2lpar"):
        main.d2lpar.main(words, standalone_mode=False)
    assert list(ran) == list(EXPERIMENTS)
    flags, command = ran["gan"]
    names = ("seed", "data", "sync_batch_norm")
    assert [flags[name] for name in names] == [3, "cryptopunks", True]
    assert "--data=cryptopunks" in command and "--sync-batch-norm" in command
    flags, command = ran["multiple_gpus"]
    assert [flags[name] for name in names] == [3, "auto", None]
    assert command == "d2lpar run multiple_gpus --devices=cpu:2 --seed=3"
    assert [str(device) for device in flags["devices"]] == ["cpu(0)", "cpu(1)"]
    assert ran["devices"][0]["seed"] == 0
    assert "--sync-batch-norm: ignored by multiple_gpus, devices" in caplog.text


def test_a_record_does_not_hold_the_folders_of_its_owner(monkeypatch):
    ran = []
    monkeypatch.setattr(run, "run_experiment", lambda *args: ran.append(args) or [])
    monkeypatch.setenv("HOME", "/home/ana")
    words = ["run", "1", "--data-dir=/srv/data", "--out=~/thesis", "--resume=../a b"]
    monkeypatch.setattr(run, "_check_data_dir", lambda *args: None)
    monkeypatch.setattr(run.atomic, "check_can_be_made", lambda folder: None)
    main.d2lpar.main(words, standalone_mode=False)
    experiment, flags, command = ran[0]
    assert experiment.name == "multiple_gpus" and flags["out"] == "/home/ana/thesis"
    assert command == (
        "d2lpar run multiple_gpus --data-dir=data '--resume=../a b' --out=thesis"
    )


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_flag_of_a_preset_can_be_overridden(name):
    experiment = EXPERIMENTS[name]
    for preset in ("quick", "book"):
        overridable = experiment.presets[preset].keys() & {
            param.name for param in main.run.params
        }
        assert overridable - {"data", "repeats"} <= experiment.takes
