"""Commands of hostile users, as tables: the command, and the line that answers it.

All run in this process, as `d2lpar` does them. Each answer is one line on standard
error and exit code 2, and nothing is written.
"""

import contextlib
import errno
import io
import os
import sys
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from d2lpar.cli import chapter_list, main
from d2lpar.records import files, kinds

NETWORK = ["run", "multiple_gpus", "--data=synthetic", "--devices=cpu:1", "--dry-run"]
GAN = ["run", "gan", "--data=synthetic", "--devices=cpu:1", "--dry-run"]
SOLVER = ["run", "least_squares", "--devices=cpu:1", "--dry-run"]
LAUNCH = ["launch", "--print"]
THEN = ["--", "run", "multiple_gpus_concise"]
EMPTY = "it is empty; write a value, or leave it out"
RANGE = "is not in the range"

SIZES = [
    ([*NETWORK, "--threads=100000"], f"'--threads': 100000 {RANGE} 1<=x<=1024."),
    ([*NETWORK, "--threads=-1"], f"'--threads': -1 {RANGE}"),
    ([*NETWORK, "--threads=1e3"], "'--threads': '1e3' is not a valid integer range."),
    ([*NETWORK, f"--global-batch-size={2**63}"], f"'--global-batch-size': {2**63}"),
    ([*NETWORK, f"--global-batch-size={2**31}"], f"{2**31} {RANGE}"),
    ([*NETWORK, f"--num-epochs={10**30}"], f"'--num-epochs': {10**30} {RANGE}"),
    ([*NETWORK, f"--seed={2**64}"], f"'--seed': {2**64} {RANGE} 0<=x<="),
    ([*NETWORK, f"--repeats={10**12}"], f"'--repeats': {10**12} {RANGE}"),
    ([*NETWORK, f"--checkpoint-every={10**12}"], f"'--checkpoint-every': {10**12}"),
    ([*NETWORK, "--lr=inf"], "'--lr': inf is not a number from 1e-12 to 1e15."),
    ([*NETWORK, "--lr=1e-300"], "'--lr': 1e-300 is not a number from 1e-12 to 1e15."),
    ([*NETWORK, "--lr=1e300"], "'--lr': 1e+300 is not a number from 1e-12 to 1e15."),
    ([*NETWORK, "--lr=1e999"], "'--lr': inf is not a number from"),
    ([*GAN, f"--micro-batch-size={10**10}"], f"'--micro-batch-size': {10**10} {RANGE}"),
    ([*GAN, "--frames-every=0"], f"'--frames-every': 0 {RANGE}"),
    (["sample", "--checkpoint=x", "--n=100000"], f"'--n': 100000 {RANGE} 1<=x<=10000."),
    (
        ["sample", "--checkpoint=x", "--scale=3000"],
        "25 faces in 5 columns at scale 3,000: a picture of 360,000 x 360,000 pixels; "
        "50,000,000 in all are the most",
    ),
    (
        ["sample", "--checkpoint=x", "--columns=900000000"],
        "25 faces in 900,000,000 columns at scale 8",
    ),
    (["sample", "--checkpoint=x", "--n=0"], f"'--n': 0 {RANGE}"),
    (["sample", "--checkpoint=x", f"--seed={10**10}"], f"'--seed': {10**10} {RANGE}"),
    (["devices", "--watch", "--interval=inf"], "interval inf: the shortest is 0.1"),
    (["devices", "--watch", "--interval=nan"], "interval nan: the shortest is 0.1"),
    (["devices", "--watch", "--interval=1e9"], "the longest 86,400 (a day)"),
    (["devices", "--watch", "--interval=-1"], "interval -1: the shortest is 0.1"),
    ([*LAUNCH, "--timeout=nan", *THEN], "'--timeout': nan is not a finite number."),
    ([*LAUNCH, "--timeout=inf", *THEN], "'--timeout': inf is not a finite number."),
    ([*LAUNCH, "--timeout=0", *THEN], "'--timeout': 0.0 is not in the range x>=1."),
    ([*LAUNCH, "--workers=100000", *THEN], f"'--workers': 100000 {RANGE} 1<=x<=256."),
    ([*LAUNCH, "--workers=0", *THEN], f"'--workers': 0 {RANGE}"),
    ([*LAUNCH, "--servers=-3", *THEN], f"'--servers': -3 {RANGE}"),
    ([*LAUNCH, f"--heartbeat={10**12}", *THEN], f"'--heartbeat': {10**12} {RANGE}"),
    ([*LAUNCH, "--port=65536", *THEN], f"'--port': 65536 {RANGE} 1<=x<=65535."),
    ([*LAUNCH, "--compress=nan", *THEN], "--compress nan: write a number greater"),
    ([*LAUNCH, "--compress=-1", *THEN], "--compress -1: write a number greater"),
    (["compare", "--peers", "--threads=4096"], f"'--threads': 4096 {RANGE}"),
    (["compare", "--peers", "--rounds=0"], f"'--rounds': 0 {RANGE}"),
    (["compare", "--peers", f"--n-train={2**63}"], f"'--n-train': {2**63} {RANGE}"),
    (["compare", "--peers", "--devices=cpu:100000000"], "256 are the most"),
]
EMPTIES = [
    *[
        ([*NETWORK, f"--{flag}="], f"Invalid value for '--{flag}': {EMPTY}")
        for flag in ("out", "data-dir", "resume", "num-devices", "devices")
    ],
    *[
        ([*LAUNCH, f"--{flag}=", *THEN], f"Invalid value for '--{flag}': {EMPTY}")
        for flag in ("devices", "interface", "ssh", "python", "directory", "logs")
    ],
    (["sample", "--checkpoint="], f"Invalid value for '--checkpoint': {EMPTY}"),
    (["sample", "--checkpoint=x", "--out="], f"'--out': {EMPTY}"),
    (["plot", "x", "--out="], f"'--out': {EMPTY}"),
    (["plot", "x", "--data-dir= "], f"'--data-dir': {EMPTY}"),
    (["compare", "x", "y", "--out="], f"'--out': {EMPTY}"),
    (["compare", "--peers="], f"'--peers': {EMPTY}"),
    (["doctor", "--out="], f"'--out': {EMPTY}"),
    (["doctor", "--data-dir="], f"'--data-dir': {EMPTY}"),
    ([*NETWORK, "--out=a\0b"], "'--out': it holds a NUL character"),
]
NO_USE = "has no use for it; leave it out"
UNUSED = [
    ([*NETWORK, "--mp4"], f"--mp4: chapter multiple_gpus {NO_USE}"),
    ([*SOLVER, "--mp4"], f"--mp4: chapter least_squares {NO_USE}"),
    (["run", "memory", "--mp4"], f"--mp4: chapter memory {NO_USE}"),
    (["run", "devices", "--watch"], f"--watch: chapter devices {NO_USE}"),
    (["run", "devices", "--out=x"], f"--out x: chapter devices {NO_USE}"),
    (["run", "devices", "--tf32"], f"--tf32: chapter devices {NO_USE}"),
    (["run", "devices", "--repeats=2"], f"--repeats 2: chapter devices {NO_USE}"),
    (["run", "devices", "--seed=0"], f"--seed 0: chapter devices {NO_USE}"),
    (["run", "memory", "--profile"], f"--profile: chapter memory {NO_USE}"),
    (["run", "memory", "--threads=1"], f"--threads 1: chapter memory {NO_USE}"),
    (["run", "memory", "--resume=last"], f"--resume last: chapter memory {NO_USE}"),
    (
        ["run", "memory", "--data=cryptopunks"],
        "--data cryptopunks: chapter memory takes auto, synthetic",
    ),
    (["run", "kernels", "--lr=0.1"], f"--lr 0.1: chapter kernels {NO_USE}"),
    (["run", "kernels", "--num-epochs=1"], f"--num-epochs 1: chapter kernels {NO_USE}"),
    ([*NETWORK, "--micro-batch-size=5"], "--micro-batch-size 5: chapter multiple_gpus"),
    ([*NETWORK, "--sync-batch-norm"], "--sync-batch-norm: chapter multiple_gpus"),
    (
        [*NETWORK, "--frames-every=5"],
        f"--frames-every 5: chapter multiple_gpus {NO_USE}",
    ),
    ([*SOLVER, "--lr=0.1"], f"--lr 0.1: chapter least_squares {NO_USE}"),
    (
        [*SOLVER, "--global-batch-size=8"],
        "--global-batch-size 8: chapter least_squares",
    ),
    ([*SOLVER, "--checkpoint-every=1"], "--checkpoint-every 1: chapter least_squares"),
    ([*SOLVER, "--resume=last"], f"--resume last: chapter least_squares {NO_USE}"),
    ([*SOLVER, "--data-dir=."], f"--data-dir .: chapter least_squares {NO_USE}"),
    (
        [*SOLVER, "--data=cryptopunks"],
        "--data cryptopunks: chapter least_squares takes auto, synthetic",
    ),
    (
        ["run", "least_squares_large", "--num-epochs=3"],
        f"--num-epochs 3: chapter least_squares_large {NO_USE}",
    ),
    (
        ["run", "timing", "--data=fashion-mnist"],
        "--data fashion-mnist: chapter timing takes auto, synthetic",
    ),
    (
        ["run", "multiple_gpus", "--data=cryptopunks"],
        "chapter multiple_gpus takes auto, synthetic, fashion-mnist",
    ),
    (
        ["run", "gan", "--data=fashion-mnist"],
        "--data fashion-mnist: chapter gan takes auto, synthetic, cryptopunks",
    ),
    (["run", "scaling", "--lr=0.1"], f"--lr 0.1: chapter scaling {NO_USE}"),
    (
        ["run", "low_precision", "--resume=last"],
        f"--resume last: chapter low_precision {NO_USE}",
    ),
    ([*LAUNCH, *THEN, "--repeats=2"], "launch: workers measure one thing at a time"),
    ([*LAUNCH, *THEN, "--num-devices=1,2"], "measure one thing at a time: one --num-"),
    ([*LAUNCH, *THEN, "--mp4"], "--mp4: chapter multiple_gpus_concise"),
    ([*LAUNCH, *THEN, "--lr=nan"], "'--lr': nan is not a number from"),
    ([*LAUNCH, *THEN, "--depth=3"], "No such option '--depth'"),
    ([*LAUNCH, *THEN, "--devices=tpu"], "devices 'tpu': write auto, cpu:N"),
    ([*LAUNCH, "--", "run", "gan"], "launch: gan is not shared among workers; write"),
    ([*LAUNCH, "--", "run", "all"], "chapter 'all': write one of "),
    ([*LAUNCH, "--", "plot", "x"], "-- plot x: after -- write what each worker runs"),
    (LAUNCH, "launch ... -- (nothing): after -- write what each worker runs"),
    ([*NETWORK, "--tf32"], "--tf32 with --devices cpu:1: it is for GPUs"),
    ([*NETWORK, "--deterministic"], "--deterministic with --devices cpu:1: it is for"),
    ([*NETWORK, "--resume=last", "--repeats=2"], "--resume with --repeats: a training"),
    (
        ["completion"],
        "Missing argument '{bash|zsh|fish}'. Choose from: bash, zsh, fish",
    ),
    (
        [*LAUNCH, "--compress=1e-50", *THEN],
        "--compress 1e-50: write a number greater",
    ),
    (["launch", "--python=nope", *THEN], "--python nope: there is no such program"),
    (
        ["launch", "--directory=nope", *THEN],
        "--directory nope: there is no such folder",
    ),
    ([*NETWORK, "--out=record"], "record: Not a directory"),
    ([*NETWORK, "--out=/dev/full"], "/dev/full: Not a directory"),
    ([*NETWORK, "--out=empty/a/b"], "empty: Not a directory"),
    ([*NETWORK[:2], "--data-dir=nope"], "--data-dir nope: not a folder that can be"),
    ([*NETWORK[:2], "--data-dir=record"], "--data-dir record: not a folder that can"),
    ([*NETWORK, "--data-dir=."], "--data-dir . with --data synthetic, which reads no"),
    ([*NETWORK, "--depth=3"], "No such option '--depth'"),
    ([*NETWORK, "more"], "Got unexpected extra argument (more)"),
    ([*NETWORK, "--lr"], "Option '--lr' requires an argument"),
    ([*NETWORK, "--mp4=yes"], "Option '--mp4' does not take a value"),
    (["run"], "chapter '': write one of all, devices, arrays, "),
    (["compare", "a", "b", "--json", "--csv"], "--json and --csv: one of them"),
    (["compare", "a", "b", "--csv", "--json"], "--json and --csv: one of them"),
    (["compare", "a", "b", "--lr=0.1"], "--lr=0.1: goes with --peers only"),
    (["compare", "a", "b", "--seed=0"], "--seed=0: goes with --peers only"),
    (["compare", "a", "b", "c"], "Got unexpected extra argument (c)"),
    (["compare", "a", "--peers"], "--peers and the record a: compare one or the"),
    (["compare", "a"], "compare: name two records, or give --peers"),
    (["compare"], "compare: name two records, or give --peers"),
    (["devices", "--interval=2"], "--interval=2.0: goes with --watch only"),
    (["devices", "--json", "--pid=1"], "--pid=1: goes with --watch only"),
    ([*LAUNCH, "--ssh=ssh -p 22", *THEN], "--ssh ssh -p 22: goes with --hosts only"),
    (
        ["plot", "record", "--mp4"],
        "--mp4: these records hold no faces, only a GAN's do",
    ),
    (["plot", "record", "--data-dir=x"], "--data-dir x: these records hold no faces"),
    (["run", "multiple"], "chapter 'multiple': write one of all, "),
    (["run", ""], "chapter '': write one of all, "),
    (["run", "../gan"], "chapter '../gan': write one of all, "),
    (["completion", "tcsh"], "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
]
DEVICES = [
    ([*NETWORK[:3], f"--devices={text}"], says)
    for text, says in [
        ("tpu:1", "devices 'tpu:1': write auto, cpu:N, gpu:N"),
        ("cpu:-1", "devices 'cpu:-1': write auto, cpu:N"),
        ("cpu:1.5", "devices 'cpu:1.5': write auto, cpu:N"),
        ("cpu:2,gpu:1", "CPU contexts and GPUs do not mix"),
        ("cpu:0", "devices 'cpu:0': asks for 0 devices"),
        ("gpu:0", "devices 'gpu:0': asks for 0 devices"),
        ("cpu:1,1", "devices 'cpu:1,1': names a device twice"),
        ("cpu:100000000", "devices 'cpu:100000000': 256 are the most"),
        (f"cpu:{'9' * 20}", f"devices 'cpu:{'9' * 20}': 256 are the most"),
        (f"gpu:{'9' * 5000}", "999...': 256 are the most"),
        ("gpu:0,1000", "devices 'gpu:0,1000': 256 are the most"),
        ("cpu:257", "devices 'cpu:257': 256 are the most"),
    ]
] + [
    ([*NETWORK[:3], "--devices=cpu:2", f"--num-devices={text}"], says)
    for text, says in [
        ("0", "num-devices '0': write whole numbers above 0"),
        ("-1", "num-devices '-1': write whole numbers above 0"),
        ("two", "num-devices 'two': write whole numbers above 0, as in 1,2,4"),
        ("1,", "num-devices '1,': write whole numbers above 0"),
        ("1e0", "num-devices '1e0': write whole numbers above 0"),
        ("1,4", "num-devices 4: --devices gives 2; ask for 1 to 2"),
        ("2,1,2", "num-devices '2,1,2': names a count twice"),
        ("9" * 5000, "999...': 256 are the most"),
    ]
]
DEVICES += [  # which only MXNet knows
    (["run", "multiple_gpus", "--num-devices=256"], "num-devices 256: --devices gives"),
    (["run", "all", "--devices=gpu:255,"], "devices 'gpu:255,': "),
]
FILES = [
    (["plot", "absent"], "absent: cannot be read as a record (No such file"),
    (["plot", "/dev/zero"], "/dev/zero: a device or a pipe, not a record"),
    (["plot", ""], f"'RECORDS...': {EMPTY}"),
    (["compare", "record", ""], f"'[B]': {EMPTY}"),
    (["plot", "record", "--out=/dev/null"], "/dev/null: Not a directory"),
    (["plot", "record", "--out=record"], "record: Not a directory"),
    (
        ["compare", "record", "record", "--json", "--out=empty"],
        "empty: Not a directory",
    ),
    (["compare", "record", "record", "--csv", "--out=/dev/full"], "/dev/full: Not a"),
    (["plot", "."], ".: cannot be read as a record (Is a directory)"),
    (["plot", "binary"], "binary: cannot be read as a record (not a text file)"),
    (["plot", "empty"], "empty: the first line is not a record's header"),
    (["plot", "deep"], "deep, line 1: not a record line ("),
    (["plot", "nested"], "nested, line 1: not a record line (more than 20 levels"),
    (["plot", "bomb"], "bomb, line 1: not a record line ("),
    (["plot", "nan"], "nan, line 1: not a record line (NaN is no number)"),
    (["plot", "huge"], "huge, line 1: not a record line (1e999 is no number)"),
    (["plot", "escape"], "escape, line 1: not a record line (holds '\\x1b', which is"),
    (["plot", "surrogate"], "surrogate, line 1: not a record line (holds '\\ud800'"),
    (["compare", "absent", "absent"], "absent: cannot be read as a record"),
    (["sample", "--checkpoint=absent"], "absent: cannot be read (No such file"),
    (["sample", "--checkpoint=binary"], "binary: not a checkpoint, or truncated"),
    (["sample", "--checkpoint=."], ".: cannot be read (Is a directory)"),
    ([*LAUNCH, "--hosts=option", *THEN], "option: line 1 is '-oProxyCommand=x'"),
    ([*LAUNCH, "--hosts=empty", *THEN], "empty: no host; write one per line"),
    ([*LAUNCH, "--hosts=absent", *THEN], "File 'absent' does not exist."),
    ([*LAUNCH, "--hosts=.", *THEN], "File '.' is a directory."),
]
CONTENT = {
    "binary": b"\x89PNG\xff\xfe\x00",
    "empty": b"",
    "option": b"-oProxyCommand=x\n",
    "deep": b"[" * 200_000 + b"\n",
    "nested": b'{"kind": ' + b"[" * 50 + b"]" * 50 + b"}\n",
    "bomb": b'{"kind": "header", "seed": ' + b"9" * 10_000 + b"}\n",
    "nan": b'{"kind": "header", "seed": NaN}\n',
    "huge": b'{"kind": "header", "seed": 1e999}\n',
    "escape": b'{"kind": "header", "chapter": "\\u001b[2J"}\n',
    "surrogate": b'{"kind": "header", "chapter": "\\ud800"}\n',
}


HEADER = kinds.Header(
    chapter="multiple_gpus", preset="book", num_devices=1, device_kind="cpu",
    devices=["cpu(0)"], threads_per_device=1, cores=2, cpu_model="A CPU",
    dataset="fashion-mnist", dataset_sha256="0" * 64, synthetic=False, seed=0,
    settings={"global_batch_size": 256}, command="d2lpar run multiple_gpus",
    versions={}, git_commit=None, git_dirty=None, date="2026-01-01",
)  # fmt: skip
EPOCH = kinds.EpochRecord(1, 20.0, 3000.0, 1.0, 0.5)
CONTENT["record"] = "".join(
    f"{files.to_line(line)}\n" for line in (HEADER, EPOCH)
).encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attacked")
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)
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
        printed = capfd.readouterr()
        assert printed.out == ""  # no cell of a chapter has run
        return printed.err, ended.value.code

    return answer


@pytest.mark.parametrize(
    ("words", "says"),
    [*SIZES, *EMPTIES, *UNUSED, *DEVICES, *FILES],
    ids=lambda value: ascii(" ".join(value))[1:60] if isinstance(value, list) else "",
)
def test_one_line_names_value_and_remedy(answer, folder, words, says):
    error, code = answer(words)
    assert code == 2, error
    assert error.startswith("d2lpar: ") and error.count("\n") == 1, error
    assert says in error
    assert set(os.listdir(folder)) == set(CONTENT)


FLAGS = sorted(
    {flag for listed in chapter_list.CHAPTERS.values() for flag in listed.takes}
    | chapter_list.COMMON
    | {"data", "nope"}
)
VALUES = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(["auto", "cpu:2", "gpu:1", "1,2", "quick", "synthetic", "last"]),
)


@settings(max_examples=200, deadline=None)
@given(
    chapter=st.sampled_from([*chapter_list.CHAPTERS, "all", "nope"]) | VALUES,
    flags=st.dictionaries(st.sampled_from(FLAGS), st.none() | VALUES, max_size=3),
    launched=st.booleans(),
)
@example(chapter="all", flags={"lr": "0.1", "mp4": None}, launched=False)
def test_any_command_line_runs_or_is_refused_in_a_line(chapter, flags, launched):
    words = [f"--{flag}".replace("_", "-") for flag in flags]
    words = [w if v is None else f"{w}={v}" for w, v in zip(words, flags.values())]
    words = ["run", chapter, *words]
    argv = ["d2lpar", *(["launch", "--print", "--", *words] if launched else words)]
    printed, out, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch("sys.argv", argv),
        mock.patch("runpy.run_path") as run_path,
        contextlib.redirect_stderr(printed),
        contextlib.redirect_stdout(out),
    ):
        try:
            main.main()
        except SystemExit as ended:
            code = ended.code
    lines = printed.getvalue().split("\n")[:-1]
    assert all(line.startswith("d2lpar: ") for line in lines), lines
    if code == 0:
        assert launched or run_path.called or "Usage" in out.getvalue()
        assert all(": ignored by " in line for line in lines), lines
    else:
        assert code == 2 and len(lines) == 1 and not run_path.called


def test_all_gives_a_setting_to_those_that_have_it_and_names_the_others(
    monkeypatch, capsys
):
    ran = {}

    def run_path(path, run_name):
        ran[Path(path).stem] = sys.argv[1:]

    monkeypatch.setattr("runpy.run_path", run_path)
    words = ["run", "all", "--seed=3", "--data=cryptopunks", "--mp4", "--dry-run"]
    monkeypatch.setattr("sys.argv", ["d2lpar", *words])
    main.main()
    assert list(ran) == list(main.chapter_files())
    assert ran["gan"] == words[2:]
    assert ran["multiple_gpus"] == ["--seed=3", "--dry-run"]
    assert ran["devices"] == ["--dry-run"]
    seed, data, mp4 = capsys.readouterr().err.splitlines()
    assert seed.startswith("d2lpar: --seed=3: ignored by devices, ")
    assert "memory" in seed and "timing" not in seed
    assert "--data=cryptopunks: ignored by devices, arrays, timing, " in data
    assert "--mp4: ignored by devices" in mp4 and "gan" not in mp4


def test_a_working_directory_that_is_gone_is_named(monkeypatch, capfd):
    def gone():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr("sys.argv", ["d2lpar", *LAUNCH, *THEN])
    monkeypatch.setattr(os, "getcwd", gone)
    with pytest.raises(SystemExit) as ended:
        main.main()
    error = capfd.readouterr().err
    assert ended.value.code == 2 and error.count("\n") == 1
    assert error.startswith("d2lpar: the working directory")
