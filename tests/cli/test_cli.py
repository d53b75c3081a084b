"""The command line as people meet it: in a process of its own, with what it prints."""

import csv
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

import d2lpar
from d2lpar import chapter, lenet
from d2lpar.cli import main, notebook
from d2lpar.cli import run as cli_run
from d2lpar.errors import DeviceError, SettingError
from d2lpar.records import files as records_files
from d2lpar.records import kinds
from d2lpar.records.kinds import Sample
from d2lpar.runs import sweep

ROOT = Path(d2lpar.__file__).parents[1]
SOURCES = (
    "the book",
    "the least-squares notes",
    "the GPU wiki",
    "the CryptoPunks notebook",
    "the GPUSOROBAN posts",
)
TINY = ["--data=synthetic", "--devices=cpu:2", "--dry-run"]
# Stands before the real MXNet where a command must not need it.
NO_MXNET = 'raise ImportError("mxnet was imported")\n'


@pytest.fixture
def d2lpar_command(tmp_path, short_checkout):
    """Run ``d2lpar ARGS`` in an empty folder; the finished process.

    Of a chapter only the last cell runs.
    """
    (tmp_path / "work").mkdir()

    def run(*args, code=None, mxnet=True, timeout=120, **options):
        folder = tmp_path / "no-mxnet"
        if not mxnet:
            folder.mkdir(exist_ok=True)
            (folder / "mxnet.py").write_text(NO_MXNET)
        checkout = short_checkout if args[:1] == ("run",) else ROOT
        path = [str(checkout)] + ([] if mxnet else [str(folder)])
        environ = {k: v for k, v in os.environ.items() if k != "D2LPAR_DATA"}
        environ["PYTHONPATH"] = os.pathsep.join(reversed(path))
        environ.update(options.pop("env", {}))
        command = ["-c", code] if code else ["-m", "d2lpar", *map(str, args)]
        return subprocess.run(
            [sys.executable, *command],
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=tmp_path / "work",
            env=environ,
            **options,
        )

    return run


def files(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.*"))


def is_one_line(done, *words):
    """Whether a command ended with code 2 and one line on stderr that has the words."""
    lines = done.stderr.strip().splitlines()
    return (
        done.returncode == 2
        and len(lines) == 1
        and lines[0].startswith("d2lpar: ")
        and all(word in lines[0] for word in words)
    )


# What needs no MXNet


@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        ["--version"],
        ["list"],
        ["run", "--help"],
        ["completion", "bash"],
        ["completion", "zsh"],
        ["completion", "fish"],
    ],
    ids=" ".join,
)
def test_answers_without_mxnet(d2lpar_command, args):
    done = d2lpar_command(*args, mxnet=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() and not done.stderr


def test_version_and_help_name_what_there_is(d2lpar_command):
    assert d2lpar.__version__ in d2lpar_command("--version").stdout
    text = d2lpar_command("--help").stdout
    for command in (
        *("run", "list", "plot", "compare", "doctor", "completion"),
        *("launch", "sample", "devices"),
    ):
        assert re.search(rf"^  {command} ", text, re.MULTILINE)


def test_list_is_one_line_per_chapter_with_its_source(d2lpar_command):
    lines = d2lpar_command("list").stdout.splitlines()
    assert [line.split()[1] for line in lines] == list(main.chapter_files())
    for line in lines:
        assert re.search(rf"\[({'|'.join(SOURCES)})\b.*\]$", line), line


def test_the_shell_completes_commands_and_chapters(d2lpar_command):
    def complete(words):
        env = {
            "_D2LPAR_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        }
        code = "import sys; sys.argv = ['d2lpar']; import d2lpar.__main__"
        done = d2lpar_command(code=code, mxnet=False, env=env)
        return {line.partition(",")[2] for line in done.stdout.splitlines()}

    assert complete("d2lpar com") == {"compare", "completion"}
    multiple = {"multiple_gpus", "multiple_gpus_concise", "multiple_machines"}
    assert complete("d2lpar run mul") == multiple
    assert "all" in complete("d2lpar run ")


# Running


def test_a_dry_run_leaves_records_and_figures(d2lpar_command, tmp_path):
    done = d2lpar_command("run", "multiple_gpus", *TINY, "--num-devices=1,2")
    assert done.returncode == 0, done.stderr
    stem = "runs/multiple_gpus/dry-run-synthetic"
    assert files(tmp_path / "work") == sorted(
        [f"{stem}-cpu{n}.jsonl" for n in (1, 2)]
        + [
            f"{stem}-{what}.{ending}"
            for what in ("accuracy", "seconds")
            for ending in ("png", "svg")
        ]
    )
    run = records_files.read(tmp_path / "work" / f"{stem}-cpu2.jsonl")
    assert run.header.command == (
        "d2lpar run multiple_gpus --data=synthetic --devices=cpu:2 --dry-run "
        "--num-devices=1,2"
    )
    assert run.header.synthetic and len(run.epochs) == 1
    settings = run.header.settings
    assert settings["n_train"] == 2 * settings["global_batch_size"]
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("test acc: ")] == lines[-4:-2]
    assert "cpu(1) (" in lines[-3] and lines[-3].endswith("[synthetic data]")
    assert all(line.startswith("figure: runs/multiple_gpus/") for line in lines[-2:])
    assert "2 device(s)" in done.stderr and "samples_per_sec=" in done.stderr


def test_all_runs_every_chapter(d2lpar_command, tmp_path):
    """Small ones, in place of the book's, which test_chapters runs one by one."""
    measuring = """from d2lpar import chapter, lenet
settings = dict(num_epochs=9, global_batch_size=16, lr=0.1)
chapter.measure({!r}, lenet.WORKLOAD, {{"quick": settings, "book": settings}})
"""
    (tmp_path / "chapters").mkdir()
    for name in ("first", "third"):
        (tmp_path / "chapters" / f"{name}.py").write_text(measuring.format(name))
    (tmp_path / "chapters" / "second.py").write_text(
        "from d2lpar import chapter\n"
        'chapter.show("second", lambda *a, **k: print(*a), ["out"])'
    )
    code = f"""import sys
from pathlib import Path
from d2lpar.cli import main
main.chapters_folder = lambda: Path({str(tmp_path / "chapters")!r})
sys.argv = ["d2lpar", "run", "all", *{TINY}, "--num-devices=2", "--out=here"]
main.main()
"""
    done = d2lpar_command(code=code)
    assert done.returncode == 0, done.stderr
    made = {path.parent.name for path in (tmp_path / "work/here").rglob("*.jsonl")}
    assert made == {"first", "third"}
    assert "[cpu(0), cpu(1)]" in done.stdout  # of the one that only prints


def test_every_script_is_a_chapter():
    scripts = {path.stem for path in (ROOT / "chapters").glob("*.py")}
    assert set(main.chapter_files()) == scripts and len(scripts) >= 12


def test_watch_records_how_busy_the_devices_are(d2lpar_command, tmp_path):
    """Samples come once a second: so of a run that takes some."""
    flags = ["--num-epochs=8", "--num-devices=1", "--global-batch-size=600"]
    done = d2lpar_command("run", "multiple_gpus", *TINY, "--watch", *flags)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "work").rglob("*.jsonl")
    run = records_files.read(path)
    assert len(run.epochs) == 8 and run.of(Sample)
    assert {sample.epoch for sample in run.of(Sample)} <= set(range(1, 10))
    assert max(sample.cpu_percent for sample in run.of(Sample)) > 10
    svg = (path.parent / "dry-run-synthetic-accuracy.svg").read_text()
    assert "busy (%)" in svg and "Below: how busy" in svg


def test_devices_prints_cards_without_mxnet(d2lpar_command):
    done = d2lpar_command("devices", mxnet=False)
    assert done.returncode == 0 and "memory" in done.stdout
    cards = json.loads(d2lpar_command("devices", "--json", mxnet=False).stdout)
    assert cards["cpu"]["usable_cores"] >= 1
    done = d2lpar_command("devices", "--watch", "--interval=0", mxnet=False)
    assert is_one_line(done, "interval 0", "shortest")


def test_flags_override_the_preset_and_the_name_says_so(d2lpar_command, tmp_path):
    flags = ["--num-epochs=1", "--global-batch-size=16", "--lr=0.1", "--repeats=2"]
    run = ["run", "multiple_gpus", *TINY, "--num-devices=2", "--seed=3", "--threads=1"]
    done = d2lpar_command(*run, *flags)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "work").rglob("*.jsonl")
    record = records_files.read(path)
    assert record.path.name == "dry-run-synthetic-seed3-1thread-cpu2.jsonl"
    assert [(e.repeat, e.epoch) for e in record.epochs] == [(0, 1), (1, 1)]
    settings = record.header.settings
    assert (settings["global_batch_size"], settings["lr"]) == (16, 0.1)
    assert settings["n_train"] == 32 and settings["threads"] == 1


def test_device_counts_in_turn_are_one_job(d2lpar_command, tmp_path):
    done = d2lpar_command(
        "run", "scaling", "--dry-run", "--data=synthetic", "--devices=cpu:2"
    )
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "work" / "runs" / "scaling"
    records = sorted(path.name for path in folder.glob("*.jsonl"))
    assert records == [
        f"dry-run-synthetic-1thread-{way}-cpu2.jsonl" for way in ("concise", "scratch")
    ]
    run = records_files.read(folder / records[0])
    assert run.header.settings["device_counts"] == [1, 2]
    assert [s.num_devices for s in run.of(kinds.StepRecord)] == [1, 2, 1, 2]


def test_settings_of_presets_flags_and_dry_runs():
    presets = {
        "quick": {
            "num_epochs": 3,
            "global_batch_size": 8,
            "lr": 0.5,
            "data": {"n_train": 80},
        },
        "book": {"num_epochs": 10, "global_batch_size": 256, "lr": 0.2},
    }
    flags = dict.fromkeys(("num_epochs", "global_batch_size", "lr"))
    flags.update(preset="book", dry_run=False, profile=False)
    book = {"num_epochs": 10, "global_batch_size": 256, "lr": 0.2}
    everything = {}
    assert cli_run.settings_of(presets, flags) == ("book", book, everything)
    assert presets["quick"]["data"] == {"n_train": 80}  # left as it was
    flags["lr"] = 0.1
    assert cli_run.settings_of(presets, flags) == (
        "custom",
        {**book, "lr": 0.1},
        everything,
    )
    flags.update(lr=None, preset="quick", dry_run=True)
    name, settings, sizes = cli_run.settings_of(presets, flags)
    assert (name, settings["num_epochs"]) == ("dry-run", 1)
    assert sizes == {"n_train": 16, "n_test": 8}
    flags["num_epochs"] = 2
    assert cli_run.settings_of(presets, flags)[1]["num_epochs"] == 2
    flags["num_epochs"] = None
    solver = {"quick": {"num_epochs": 3, "data": {"rows": 9000, "columns": 900}}}
    solver["dry-run"] = {"data": {"rows": 20, "columns": 2}}
    name, settings, sizes = cli_run.settings_of(solver, flags)
    assert (name, settings) == ("dry-run", {"num_epochs": 1})
    assert sizes == {"rows": 20, "columns": 2}
    with pytest.raises(SettingError, match="--lr 0.5: this chapter has no such"):
        cli_run.settings_of(solver, {**flags, "lr": 0.5})


def test_profiles_are_written_beside_the_records(d2lpar_command, tmp_path):
    run = ["run", "least_squares_large", "--devices=cpu:2", "--dry-run", "--profile"]
    done = d2lpar_command(*run, "--num-devices=2")
    assert done.returncode == 0, done.stderr
    stem = tmp_path / "work/runs/least_squares_large/dry-run-profile-cgls-cpu2"
    table = Path(f"{stem}.profile.txt").read_text()
    assert "function calls" in table and "solve" in table
    trace = json.loads(Path(f"{stem}.trace.json").read_text())
    assert any("gemm2" in event.get("name", "") for event in trace["traceEvents"])
    assert Path(f"{stem}.jsonl").is_file()


# What goes wrong: one line, exit 2, nothing written


BAD_INPUT = [
    (["--preset=huge"], ["--preset", "'huge'", "'quick', 'book'"]),
    (["--devices=tpu:1"], ["'tpu:1'", "cpu:N"]),
    (["--devices=cpu:0"], ["'cpu:0'", "0 devices"]),
    (["--devices=gpu:2"], ["'gpu:2'", "no GPU here", "cpu:N"]),
    (["--num-devices=0"], ["num-devices '0'", "above 0, as in 1,2,4"]),
    (["--num-devices=-1"], ["num-devices '-1'"]),
    (["--num-devices=1,4"], ["num-devices 4", "--devices cpu:4"]),
    (["--num-devices=two"], ["'two'"]),
    (["--num-epochs=0"], ["--num-epochs", "0 "]),
    (["--global-batch-size=-256"], ["--global-batch-size", "-256"]),
    (["--lr=0"], ["--lr", "0 "]),
    (["--lr=nan"], ["--lr", "nan"]),
    (["--lr=-0.2"], ["--lr", "-0.2"]),
    (["--seed=-1"], ["--seed", "-1"]),
    (["--repeats=0"], ["--repeats", "0"]),
    (["--threads=0"], ["--threads", "0"]),
    (["--data=mnist"], ["--data", "'mnist'"]),
    (["--data=auto", "--data-dir=absent"], ["--data-dir", "absent"]),
    (["--out=a-file"], ["a-file", "Not a directory"]),
    (["--tf32"], ["--tf32 with --devices cpu:2", "for GPUs"]),
    (["--deterministic"], ["--deterministic with --devices cpu:2", "for GPUs"]),
    (["--depth=3"], ["--depth"]),
]
NOT_RESUMED = [
    (["--resume=absent.safetensors"], ["absent.safetensors: cannot be read"]),
    (["--resume=last"], ["no good checkpoint in runs/multiple_gpus"]),
    (["--resume=last", "--repeats=2"], ["--resume with --repeats"]),
    (["--micro-batch-size=5"], ["--micro-batch-size 5: chapter multiple_gpus has"]),
]
# Commands one after the other in one process, each as if alone in the folder.
IN_TURN = """
import contextlib, io, json, pathlib, sys
from d2lpar.cli import main
outcomes = []
for words in json.loads(sys.argv[1]):
    sys.argv, code = ["d2lpar", *words], 0
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main.main()
        except SystemExit as ended:
            code = ended.code
    written = list(map(str, pathlib.Path().rglob("*.*")))
    outcomes.append([code, out.getvalue(), err.getvalue(), written])
print(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def bad_runs(tmp_path_factory, short_checkout):
    """What comes of `d2lpar run multiple_gpus` with each of the flags above."""
    folder = tmp_path_factory.mktemp("bad")
    (folder / "a-file").write_text("not a folder")
    every = [flags for flags, _ in (*BAD_INPUT, *NOT_RESUMED)]
    commands = [["run", "multiple_gpus", *TINY, *flags] for flags in every]
    environ = {k: v for k, v in os.environ.items() if k != "D2LPAR_DATA"}
    done = subprocess.run(
        [sys.executable, "-c", IN_TURN, json.dumps(commands)],
        cwd=folder,
        env={**environ, "PYTHONPATH": str(short_checkout)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout.splitlines()[-1])
    return {
        tuple(flags): (subprocess.CompletedProcess(flags, *outcome), written)
        for flags, (*outcome, written) in zip(every, outcomes)
    }


@pytest.mark.parametrize(
    ("flags", "words"),
    BAD_INPUT,
    ids=lambda value: " ".join(value) if value[0].startswith("--") else "",
)
def test_bad_input_is_one_line(bad_runs, flags, words):
    if "--devices=gpu:2" in flags and _gpus():
        pytest.skip("this machine has a GPU")
    done, written = bad_runs[tuple(flags)]
    assert is_one_line(done, *words)
    assert written == []


def _gpus():
    from d2lpar._mxnet import mx

    return mx.context.num_gpus()


def test_an_unknown_chapter_or_command_is_one_line(d2lpar_command):
    assert is_one_line(
        d2lpar_command("run", "chapter_9"), "'chapter_9'", "multiple_gpus"
    )
    assert is_one_line(d2lpar_command("train"), "'train'")


def test_a_corrupt_data_file_is_one_line(d2lpar_command, tmp_path):
    (tmp_path / "data").mkdir()
    name = "train-images-idx3-ubyte.gz"
    for other in ("train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (tmp_path / "data" / f"{other}-ubyte.gz").write_bytes(b"")
    (tmp_path / "data" / name).write_bytes(b"not gzip")
    done = d2lpar_command("run", "multiple_gpus", f"--data-dir={tmp_path / 'data'}")
    assert is_one_line(done, name, "delete it")
    assert files(tmp_path / "work") == []


def test_no_network_and_no_copy_is_one_line_where_the_real_data_was_asked_for(
    d2lpar_command, tmp_path
):
    env = {
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "MXNET_HOME": str(tmp_path / "mxnet"),
        "http_proxy": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
    }
    run = ["run", "multiple_gpus", "--data=fashion-mnist", "--dry-run"]
    done = d2lpar_command(*run, env=env)
    assert is_one_line(done, "Fashion-MNIST is not on disk and could not be downloaded")
    assert files(tmp_path / "work") == []


def test_divergence_is_said_with_its_epoch(d2lpar_command):
    run = ["run", "multiple_gpus", "--data=synthetic", "--devices=cpu:1", "--dry-run"]
    done = d2lpar_command(*run, "--lr=1e15")
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("d2lpar: training diverged: the loss of epoch 1 is ")


@pytest.fixture
def some_records(tmp_path):
    """Records of 1 and 2 devices, without training."""
    paths = []
    for n in (1, 2):
        header = kinds.Header(
            chapter="multiple_gpus", preset="book", num_devices=n, device_kind="cpu",
            devices=[f"cpu({k}) (1 thread of 2 cores)" for k in range(n)],
            threads_per_device=1, cores=2, cpu_model="A CPU", dataset="fashion-mnist",
            dataset_sha256="0" * 64, synthetic=False, seed=0,
            settings={"global_batch_size": 256, "lr": 0.2, "n_train": 60_000},
            command="d2lpar run multiple_gpus", versions={"mxnet": "1.9.1"},
            git_commit=None, git_dirty=None, date="2026-01-01T00:00:00+00:00",
        )  # fmt: skip
        epochs = [
            kinds.EpochRecord(e, 20.0 / n, 3000.0 * n, 1 / e, 0.1 * e)
            for e in range(1, 6)
        ]
        paths.append(tmp_path / "records" / f"book-cpu{n}.jsonl")
        records_files.write(paths[-1], header, epochs)
    return paths


def test_plot_draws_again_without_mxnet(d2lpar_command, some_records, tmp_path):
    done = d2lpar_command("plot", *some_records, mxnet=False)
    assert done.returncode == 0, done.stderr
    pictures = [p for p in files(tmp_path / "records") if not p.endswith(".jsonl")]
    assert len(done.stdout.splitlines()) == len(pictures) == 4
    assert "book-seconds.svg" in pictures


def test_compare_prints_and_draws(d2lpar_command, some_records, tmp_path):
    done = d2lpar_command("compare", *some_records, mxnet=False)
    assert done.returncode == 0, done.stderr
    assert "2.00" in done.stdout and "speedup" in done.stdout.lower()
    picture = re.search(r"^figure: (.+)$", done.stdout, re.MULTILINE)[1]
    assert Path(picture).is_file()


def test_compare_for_other_tools(d2lpar_command, some_records, tmp_path):
    before = files(tmp_path / "records")
    as_json = json.loads(d2lpar_command("compare", *some_records, "--json").stdout)
    assert as_json["speedup"] == pytest.approx(2)
    text = d2lpar_command("compare", *some_records, "--csv").stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["num_devices"] for row in rows] == ["1", "2"]
    assert files(tmp_path / "records") == before


def test_compare_warns_of_other_differences_once(d2lpar_command, some_records):
    text = some_records[1].read_text()
    some_records[1].write_text(text.replace('"lr": 0.2', '"lr": 0.1'))
    for flags in ([], ["--json"]):
        done = d2lpar_command("compare", *some_records, *flags)
        assert (done.stdout + done.stderr).count("lr") >= 1
    assert json.loads(done.stdout)  # the warning is not among the JSON


@pytest.mark.parametrize("command", ["plot", "compare"])
def test_a_record_that_is_none_is_one_line(
    d2lpar_command, some_records, tmp_path, command
):
    (tmp_path / "bad.jsonl").write_text("{}\n")
    for bad in ("absent.jsonl", tmp_path / "bad.jsonl"):
        assert is_one_line(d2lpar_command(command, some_records[0], bad), str(bad))


def test_a_full_disk_while_drawing_is_one_line_and_leaves_nothing(
    d2lpar_command, some_records, tmp_path
):
    """As on a full disk, write(2) fails in the middle of a picture."""
    before = files(tmp_path)

    def small_files_only():
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))

    done = d2lpar_command("plot", *some_records, preexec_fn=small_files_only)
    assert is_one_line(done, "File too large")
    assert [f for f in files(tmp_path) if f.startswith("records")] == [
        f for f in before if f.startswith("records")
    ]


def test_a_full_disk_while_recording_is_one_line(d2lpar_command, tmp_path):
    def tiny_files_only():
        resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))

    run = ["run", "multiple_gpus", *TINY, "--num-devices=1"]
    done = d2lpar_command(*run, preexec_fn=tiny_files_only)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].endswith("File too large")
    assert files(tmp_path / "work") == []


# Ctrl-C


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_ctrl_c_stops_soon_and_keeps_the_finished_epochs(tmp_path, how):
    process = subprocess.Popen(
        [sys.executable, "-c", LONG_CHAPTER, "--num-epochs=10000"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    partial = tmp_path / "runs/long/custom-synthetic-cpu2.partial.jsonl"
    deadline = time.monotonic() + 60
    while not (partial.exists() and partial.read_text().count("\n") >= 3):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    children = _children(process.pid)
    assert len(children) == 1
    process.send_signal(signal.Signals[how])
    begin = time.monotonic()
    _, stderr = process.communicate(timeout=60)
    # The training has seen the signal: it was not killed when its time was over.
    assert time.monotonic() - begin < sweep.SECONDS_TO_STOP
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert stderr.strip().endswith("d2lpar: interrupted")
    assert f"{partial.name} keeps the " in stderr
    assert len(records_files.read(partial).epochs) >= 2
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    # And goes on from the checkpoint that it has left.
    (checkpoint,) = partial.parent.glob("*.safetensors")
    assert f"{checkpoint.name} keeps epoch" in stderr and "--resume last" in stderr
    epoch = int(re.search(r"epoch(\d+)", checkpoint.name)[1])
    done = subprocess.run(
        [sys.executable, "-c", LONG_CHAPTER, "--resume=last",
         f"--num-epochs={epoch + 2}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = records_files.read(partial.with_name("custom-synthetic-cpu2.jsonl"))
    assert [e.epoch for e in run.epochs] == list(range(1, epoch + 3))
    assert [e.epoch for e in run.epochs if e.resumed] == [epoch + 1]
    svg = partial.with_name("custom-synthetic-accuracy.svg").read_text()
    caption = " ".join(
        re.findall(r">([^<]*\w[^<]*)<", svg)
    )  # which may be in two lines
    assert "continued from a checkpoint" in caption


LONG_CHAPTER = """
import sys
from d2lpar import chapter, lenet
sys.argv = ["long", "--data=synthetic", "--devices=cpu:2", "--num-devices=2",
            *sys.argv[1:]]
settings = dict(num_epochs=9, global_batch_size=16, lr=0.1)
settings["data"] = dict(n_train=64, n_test=10)
chapter.measure("long", lenet.WORKLOAD, {"quick": settings, "book": settings})
"""


def _children(pid):
    tasks = Path(f"/proc/{pid}/task")
    if not tasks.exists():
        pytest.skip("there is no /proc here to find the measuring process in")
    return [
        int(child)
        for task in tasks.iterdir()
        for child in (task / "children").read_text().split()
    ]


# Checkpoints and what is made of them


@pytest.mark.parametrize(("flags", "words"), NOT_RESUMED)
def test_what_cannot_be_resumed_is_one_line(bad_runs, flags, words):
    done, written = bad_runs[tuple(flags)]
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("d2lpar: ")
    for word in words:
        assert word in done.stderr.splitlines()[-1]
    assert written == []


def test_a_solver_cannot_be_resumed(d2lpar_command):
    done = d2lpar_command("run", "least_squares", *TINY, "--checkpoint-every=1")
    assert done.returncode == 2
    assert "--checkpoint-every 1: chapter least_squares has no use" in done.stderr


def test_a_gan_is_interrupted_resumed_and_draws(d2lpar_command, tmp_path):
    """In two runs on one device and on two; then faces from the last checkpoint."""
    gan = ["run", "gan", *TINY, "--checkpoint-every=1"]
    first = d2lpar_command(*gan, "--num-devices=1")
    assert first.returncode == 0, first.stderr
    folder = tmp_path / "work" / "runs" / "gan"
    checkpoint = folder / "dry-run-synthetic-cpu1.epoch000001.safetensors"
    again = d2lpar_command(*gan, "--num-devices=2", "--num-epochs=3", "--resume=last")
    assert again.returncode == 0, again.stderr
    name = checkpoint.relative_to(tmp_path / "work")
    assert f"continuing from {name}" in again.stderr
    run = records_files.read(folder / "dry-run-synthetic-cpu2.jsonl")
    assert [e.resumed for e in run.epochs] == ["elsewhere", "here", None]
    pictures = []
    for seed in (7, 7, 8):
        done = d2lpar_command(
            "sample", "--checkpoint", checkpoint, "--n=6", f"--seed={seed}",
            "--out=new/faces.png", "--columns=3", "--scale=2",
        )  # fmt: skip
        assert done.stdout == "figure: new/faces.png\n", done.stderr
        pictures.append((tmp_path / "work" / "new" / "faces.png").read_bytes())
    assert pictures[0] == pictures[1] != pictures[2]
    with Image.open(tmp_path / "work" / "new" / "faces.png") as picture:
        assert picture.size == (3 * 24 * 2, 2 * 24 * 2)


def test_a_checkpoint_of_another_network_draws_nothing(d2lpar_command, tmp_path):
    done = d2lpar_command("run", "multiple_gpus", *TINY, "--checkpoint-every=1",
                          "--num-devices=1")  # fmt: skip
    assert done.returncode == 0, done.stderr
    name = "runs/multiple_gpus/dry-run-synthetic-cpu1.epoch000001.safetensors"
    done = d2lpar_command("sample", "--checkpoint", name)
    assert is_one_line(done, name, "a checkpoint of workload lenet, not of gan")
    assert is_one_line(
        d2lpar_command("sample", "--checkpoint=absent"), "absent", "No such"
    )
    assert not (tmp_path / "work" / "faces.png").exists()


# In a notebook


def test_in_a_notebook_flags_are_not_read_and_errors_are_raised(monkeypatch):
    calls = []
    monkeypatch.setattr(notebook, "is_here", lambda: True)
    monkeypatch.setattr(sys, "argv", ["ipykernel_launcher.py", "-f", "kernel.json"])
    monkeypatch.setattr(cli_run, "run_sweep", lambda *args: calls.append(args))
    chapter.measure("some_chapter", lenet.WORKLOAD, {"quick": {}})
    ((measured, command, flags),) = calls
    assert measured.name == "some_chapter" and measured.workload is lenet.WORKLOAD
    assert command == "d2lpar run some_chapter"
    assert (flags["preset"], flags["devices"]) == ("quick", "auto")

    def fails(*args):
        raise DeviceError("no such device")

    monkeypatch.setattr(cli_run, "run_sweep", fails)
    with pytest.raises(DeviceError, match="no such device"):
        chapter.measure("some_chapter", lenet.WORKLOAD, {"quick": {}})
