"""What the commands print and write, on one real run that all of these share."""

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

import pytest
from PIL import Image
from support.command import d2lpar
from support.factories import epoch, gan_epoch, header

from d2lpar import chapter, gan
from d2lpar.cli import compare, main, run
from d2lpar.errors import SettingError
from d2lpar.experiments import EXPERIMENTS, get
from d2lpar.records import checkpoints, files
from d2lpar.records.checkpoints import Checkpoint

STEM = "dry-run-profile-sample"


def test_a_run_leaves_records_and_pictures_and_says_what_it_found(real_run):
    folder, done = real_run
    assert done.returncode == 0, done.stderr
    names = {path.name for path in folder.iterdir() if path.name[0] != "."}
    assert {f"{STEM}-accuracy.png", f"{STEM}-seconds.png"} <= names
    assert not any("partial" in name for name in names)
    one, two = (files.read(folder / f"{STEM}-cpu{n}.jsonl") for n in (1, 2))
    losses = [[e.train_loss for e in r.epochs] for r in (one, two)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert "2 devices: epoch 2/2, loss" in done.stderr
    assert "memory for a batch of" in done.stdout and "2 contexts " in done.stdout
    links = [x for x in done.stdout.split() if x.startswith("file://")]
    assert len(links) == 3 and links[-1].endswith("/index.html")
    assert all(Path(url2pathname(urlparse(link).path)).is_file() for link in links)
    printed = done.stdout.replace(str(folder.parent), "runs") + done.stderr
    assert max(map(len, printed.splitlines())) <= 120
    assert "train_batch" in (folder / f"{STEM}-cpu1.profile.txt").read_text()
    assert json.loads((folder / f"{STEM}-cpu2.trace.json").read_text())["traceEvents"]


def test_plot_draws_again_without_mxnet(real_run, tmp_path):
    records = sorted(real_run[0].glob("*.jsonl"))
    begun, out = tmp_path / "begun.jsonl", tmp_path / "drawn"
    begun.write_text(records[0].read_text().splitlines()[0] + "\n")
    without = "import sys; sys.modules['mxnet'] = None"
    done = d2lpar("plot", *records, begun, f"--out={out}", before=without)
    assert done.returncode == 0, done.stderr
    assert "begun.jsonl: holds no results yet" in done.stderr
    assert f"{STEM}-accuracy.png" in {path.name for path in out.iterdir()}
    assert len(done.stdout.splitlines()) == len(list(out.iterdir()))


def test_compare_prints_draws_and_serves_other_tools(real_run, tmp_path, capsys):
    one, two = sorted(real_run[0].glob("*.jsonl"))
    table = d2lpar("compare", one, two, f"--out={tmp_path}")
    assert table.returncode == 0 and "speedup of b over a" in table.stdout
    assert list(tmp_path.glob("compare-*.png"))
    compare.records(one, two, as_json=True)
    as_json = json.loads(capsys.readouterr().out)
    assert as_json["speedup"] > 0 and as_json["b"]["num_devices"] == 2


def test_resume_goes_on_elsewhere_and_the_record_says_so(real_run, tmp_path):
    checkpoint = max(real_run[0].glob("*cpu1.*.safetensors"))
    done = d2lpar(
        "run", "multiple_gpus", "--dry-run", "--data=sample", "--devices=cpu:2",
        "--num-devices=2", "--num-epochs=3", f"--resume={checkpoint}",
        f"--out={tmp_path}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    resumed = files.read(tmp_path / "multiple_gpus" / "dry-run-sample-cpu2.jsonl")
    assert [e.resumed for e in resumed.epochs] == ["elsewhere", "elsewhere", "here"]
    wrong = d2lpar("sample", f"--checkpoint={checkpoint}", cwd=tmp_path)
    assert wrong.returncode == 2 and "workload lenet, not of gan" in wrong.stderr
    assert not (tmp_path / "faces.png").exists()


@pytest.mark.parametrize(("width", "d_norm"), [(None, "none"), (8, "spectral")])
def test_sample_draws_from_the_networks_that_a_checkpoint_names(
    tmp_path, width, d_norm
):
    state = gan.start(3, width, d_norm)
    state.epoch = 1
    lines = header(1, chapter="gan"), gan_epoch(1)
    saved = Checkpoint("gan", state.tensors(), state.facts(), lines)
    path = checkpoints.save(tmp_path, saved)
    done = d2lpar("sample", f"--checkpoint={path}", "--n=3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert Image.open(tmp_path / "faces.png").size == (5 * 24 * 8, 24 * 8)


def test_sample_of_networks_that_there_are_not(tmp_path):
    state = gan.start(3, 8)
    facts = {**state.facts(), "epoch": 1, "d_norm": 7}
    lines = header(1, chapter="gan"), gan_epoch(1)
    saved = Checkpoint("gan", state.tensors(), facts, lines)
    path = checkpoints.save(tmp_path, saved)
    done = d2lpar("sample", f"--checkpoint={path}", cwd=tmp_path)
    assert done.returncode == 2 and "of no network of this d2lpar" in done.stderr
    assert not (tmp_path / "faces.png").exists()


def test_a_report_is_printed_and_kept(tmp_path):
    done = d2lpar("run", "memory", f"--out={tmp_path}")
    assert done.returncode == 0, done.stderr
    heading, report = done.stdout.split("\n", 1)
    assert (tmp_path / "memory" / "quick.txt").read_text() == report
    assert "memory: prints the free memory" in heading and "free on cpu(0)" in report


def test_list_and_help_load_no_mxnet_and_name_what_there_is():
    say = "lambda: print('mxnet' in sys.modules, 'matplotlib' in sys.modules)"
    listed = d2lpar("list", before=f"import atexit, sys; atexit.register({say})")
    *rows, loaded = listed.stdout.splitlines()
    assert [row.split()[1] for row in rows[1:]] == list(EXPERIMENTS)
    assert max(map(len, rows)) <= 80
    assert loaded == "False False"
    assert "\nCommands:\n" in d2lpar().stdout  # alone it prints its help
    usage = d2lpar("run", "--help").stdout
    assert max(map(len, usage.splitlines())) <= 80
    assert "\nDevices:\n" in usage and "\n  Example: d2lpar run" in usage
    for name in ("--num-devices", "--preset", "--resume"):
        assert name in usage


def test_a_full_disk_while_recording_is_one_line(tmp_path):
    import resource

    done = d2lpar(
        "run", "memory", f"--out={tmp_path}",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1)),
    )  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "File too large" in done.stderr.splitlines()[-1]


MODULES = """
import atexit, sys
def write():
    with open("modules", "w") as file:
        print(*sys.modules, file=file)
atexit.register(write)
"""
# The tables of all subjects, which cli/results.py loads.
TABLES = tuple(
    f"d2lpar.{subject}"
    for subject in ("arrays", "least_squares", "low_precision", "scaling")
)


def test_the_parent_of_a_run_is_lean_and_loads_no_mxnet(tmp_path):
    """A real run, not a dry one: at its end, with tables and pictures."""
    done = d2lpar(
        "run", "multiple_gpus", "--data=sample", "--num-devices=1", "--num-epochs=1",
        "--global-batch-size=2500", before=MODULES, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    loaded = (tmp_path / "modules").read_text().split()
    ours = [name for name in loaded if name.split(".")[0] == "d2lpar"]
    ours = [name for name in ours if not name.startswith(TABLES)]
    assert len(ours) <= 33, ours
    assert "mxnet" not in loaded


def flags_of(chapter, *words):
    """The flags of a command line, as `run_experiment` gets them."""
    flags = main.run.make_context("run", [chapter, *words]).params
    return get(flags.pop("chapter")), run.parsed(flags)


def test_settings_of_presets_flags_and_dry_runs():
    of_lenet = ("multiple_gpus", "--data=sample")
    preset, settings, data = run.settings_of(*flags_of(*of_lenet))
    assert preset == "quick" and settings["global_batch_size"] == 64
    assert (data["n_train"], data["n_test"], data["seed"]) == (5_000, 1_000, 0)
    preset, settings, _ = run.settings_of(*flags_of(*of_lenet, "--lr=0.1"))
    assert (preset, settings["lr"]) == ("custom", 0.1)
    preset, settings, data = run.settings_of(*flags_of(*of_lenet, "--dry-run"))
    assert (preset, settings["num_epochs"], data["n_train"]) == ("dry-run", 1, 128)
    large = flags_of(*of_lenet, "--dry-run", f"--global-batch-size={2**31 - 1}")
    assert run.settings_of(*large)[2]["n_train"] == 5_000
    assert run.settings_of(*flags_of("gan", "--data=synthetic"))[0] == "quick"
    # What makes another recipe stands in the record's name.
    preset, settings, _ = run.settings_of(*flags_of("gan", "--d-norm=none"))
    assert (preset, settings["d_norm"]) == ("quick-d-norm-none", "none")
    words = ("--preset=sharp", "--sync-batch-norm", "--num-epochs=3")
    preset, settings, _ = run.settings_of(*flags_of("gan", *words))
    assert preset == "custom-sync-batch-norm" and settings["width"] == 64


def test_a_chapter_of_several_methods_measures_each_on_each_count(tmp_path):
    words = ("--devices=cpu:2", "--num-devices=1,2", f"--out={tmp_path}")
    solver, flags = flags_of("least_squares", *words)
    jobs = run.jobs_of(solver, flags, "d2lpar run least_squares")
    each = [variant for job in jobs for variant in job.each_variant()]
    measured = [(job.num_devices, job.settings["method"]) for job in each]
    methods = [more["method"] for more in solver.variants.values()]
    assert measured == [(n, method) for n in (1, 2) for method in methods]


def test_a_notebook_raises_and_a_script_hands_its_command_line_on(monkeypatch):
    ran = []
    monkeypatch.setattr(run, "run_experiment", lambda *args: ran.append(args) or ["r"])
    monkeypatch.setattr(
        sys, "argv", ["multiple_gpus.py", "--lr=0.5", "--devices=cpu:1"]
    )
    assert chapter.measure("multiple_gpus", num_devices=[1]) == ["r"]
    experiment, flags, command = ran[0]
    assert (experiment.name, flags["lr"]) == ("multiple_gpus", 0.5)
    assert (
        command == "d2lpar run multiple_gpus --devices=cpu:1 --num-devices=1 --lr=0.5"
    )
    monkeypatch.setattr(chapter, "in_notebook", lambda: True)
    chapter.measure("multiple_gpus", devices="cpu:1")
    assert ran[1][1]["lr"] is None  # a notebook's command line is not read
    with pytest.raises(SettingError, match="depth"):
        chapter.measure("multiple_gpus", depth=3)
    with pytest.raises(SettingError, match="--sync-batch-norm: does not apply"):
        chapter.measure("multiple_gpus", sync_batch_norm=True)


@pytest.mark.parametrize(
    ("words", "says"), [(["plot", "x"], "x: "), (["run", "memory"], "the working dir")]
)
def test_the_working_directory_may_be_gone(tmp_path, words, says):
    gone = tmp_path / "gone"
    gone.mkdir()
    done = d2lpar(*words, before="import os; os.rmdir(os.getcwd())", cwd=gone)
    assert done.returncode == 2 and done.stderr.startswith(f"d2lpar: {says}")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--epochs", "3"], 2, "No such option '--epochs'"),
        (["--lr=0.1"], 2, "--lr 0.1: does not apply to kernels"),
        (["--devices=tpu"], 2, "tpu"),
        (["--help"], 0, "Usage: d2lpar run"),
    ],
)
def test_a_chapter_as_a_script_reads_its_flags_before_its_lesson(
    tmp_path, words, code, says
):
    script = tmp_path / "chapters" / "kernels.py"
    script.parent.mkdir()
    script.write_text("from d2lpar import chapter\nprint('It has ' + 'begun')\n")
    done = subprocess.run(
        [sys.executable, script, *words], capture_output=True, text=True
    )
    assert done.returncode == code and says in done.stdout + done.stderr
    assert "It has begun" not in done.stdout and "Traceback" not in done.stderr


def test_the_reader_of_the_output_may_be_gone():
    """As in `d2lpar list | true`: not 1, which is `doctor`'s, and nothing is said."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "d2lpar", "list"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_figures_need_no_backend_of_the_environment(real_run, tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "nope")
    done = d2lpar("plot", *real_run[0].glob("*.jsonl"), f"--out={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("*.png"))


def test_what_a_record_says_does_not_reach_the_terminal_raw(tmp_path):
    """Escape sequences would set the terminal's title, or move its cursor."""
    for name, model in (("a", "CPU"), ("b", "\x1b]0;pwned\x07")):
        lines = [header(1, cpu_model=model), epoch(1), epoch(2)]
        text = "".join(f"{files.to_line(line)}\n" for line in lines)
        (tmp_path / f"{name}.jsonl").write_text(text)
    for flag in ((), ("--json",)):
        done = d2lpar("compare", tmp_path / "a.jsonl", tmp_path / "b.jsonl", *flag)
        said = done.stdout + done.stderr
        assert done.returncode == 0 and "pwned" in said
        assert not set(said) & {"\x1b", "\x07"}
