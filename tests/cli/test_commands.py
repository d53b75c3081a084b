"""What the commands print and write, on one real run that all of these share."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

import pytest
from conftest import d2lpar

from d2lpar import chapter
from d2lpar.cli import run
from d2lpar.errors import SettingError
from d2lpar.experiments import EXPERIMENTS, get
from d2lpar.records import files


def test_a_run_leaves_records_and_pictures_and_says_what_it_found(real_run):
    done = real_run.training
    assert done.returncode == 0, done.stderr
    folder = real_run.folder / "multiple_gpus"
    names = {path.name for path in folder.iterdir() if path.name[0] != "."}
    assert {
        "custom-sample-cpu1.jsonl",
        "custom-sample-cpu2.jsonl",
        "custom-sample-accuracy.png",
        "custom-sample-seconds.png",
    } <= names
    assert not any("partial" in name for name in names)
    one, two = (files.read(folder / f"custom-sample-cpu{n}.jsonl") for n in (1, 2))
    losses = [[e.train_loss for e in r.epochs] for r in (one, two)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert "2 devices: epoch 3/3, loss" in done.stderr
    assert re.search(r"2 contexts (train|take) .* 1 context", done.stdout)
    links = [x for x in done.stdout.split() if x.startswith("file://")]
    assert len(links) == 3 and links[-1].endswith("/index.html")
    assert all(Path(url2pathname(urlparse(link).path)).is_file() for link in links)
    printed = done.stdout.replace(str(real_run.folder), "runs") + done.stderr
    assert max(map(len, printed.splitlines())) <= 100


def test_a_solver_runs_all_methods(real_run):
    assert real_run.solver.returncode == 0, real_run.solver.stderr
    for variant in EXPERIMENTS["least_squares"].variants:
        assert f"\n{variant} " in real_run.solver.stdout


def test_plot_draws_again_without_mxnet(real_run, tmp_path):
    records = sorted((real_run.folder / "multiple_gpus").glob("*.jsonl"))
    code = (
        "import sys; sys.modules['mxnet'] = None; "
        "from d2lpar.cli import main; main.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "plot", *map(str, records), f"--out={tmp_path}"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "custom-sample-accuracy.png" in {path.name for path in tmp_path.iterdir()}
    assert len(done.stdout.splitlines()) == len(list(tmp_path.iterdir()))


def test_compare_prints_draws_and_serves_other_tools(real_run, tmp_path):
    one, two = sorted((real_run.folder / "multiple_gpus").glob("*.jsonl"))
    table = d2lpar("compare", one, two, f"--out={tmp_path}")
    assert table.returncode == 0 and "speedup of b over a" in table.stdout
    assert list(tmp_path.glob("compare-*.png"))
    as_json = json.loads(d2lpar("compare", one, two, "--json").stdout)
    assert as_json["speedup"] > 0 and as_json["b"]["num_devices"] == 2
    assert d2lpar("compare", one, two, "--csv").stdout.count("\n") == 3


def test_resume_goes_on_elsewhere_and_the_record_says_so(real_run, tmp_path):
    checkpoint = max((real_run.folder / "multiple_gpus").glob("*cpu1.*.safetensors"))
    done = d2lpar(
        "run", "multiple_gpus", "--data=sample", "--devices=cpu:2", "--num-devices=2",
        "--num-epochs=4", "--global-batch-size=500", f"--resume={checkpoint}",
        f"--out={tmp_path}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    resumed = files.read(tmp_path / "multiple_gpus" / "custom-sample-cpu2.jsonl")
    marks = [e.resumed for e in resumed.epochs]
    assert marks == ["elsewhere"] * 3 + ["here"]
    wrong = d2lpar("sample", f"--checkpoint={checkpoint}", cwd=tmp_path)
    assert wrong.returncode == 2 and "workload lenet, not of gan" in wrong.stderr
    assert not (tmp_path / "faces.png").exists()


def test_a_report_is_printed_and_kept(tmp_path):
    done = d2lpar("run", "memory", f"--out={tmp_path}")
    assert done.returncode == 0, done.stderr
    heading, report = done.stdout.split("\n", 1)
    assert (tmp_path / "memory" / "quick.txt").read_text() == report
    assert "memory: prints the free memory" in heading and "free on cpu(0)" in report


def test_list_and_help_load_no_mxnet_and_name_what_there_is():
    code = (
        "import sys; from d2lpar.cli import main\n"
        "try: main.d2lpar(sys.argv[1:])\n"
        "finally: print('mxnet' in sys.modules, 'matplotlib' in sys.modules)"
    )
    listed = subprocess.run(
        [sys.executable, "-c", code, "list"], capture_output=True, text=True
    )
    *rows, loaded = listed.stdout.splitlines()
    assert [row.split()[1] for row in rows[1:]] == list(EXPERIMENTS)
    assert max(map(len, rows)) <= 80
    assert loaded == "False False"
    assert "\nCommands:\n" in d2lpar().stdout  # alone it prints its help
    usage = d2lpar("run", "--help").stdout
    assert max(map(len, usage.splitlines())) <= 80 and "<=x<=" not in usage
    assert "\nDevices:\n" in usage and "\n  Example: d2lpar run" in usage
    for name in ("--num-devices", "--preset", "--resume"):
        assert name in usage


def test_profiles_are_written_beside_the_record(tmp_path):
    done = d2lpar(
        "run", "multiple_gpus", "--dry-run", "--profile", "--data=sample",
        "--devices=cpu:1", f"--out={tmp_path}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "multiple_gpus"
    stem = "dry-run-profile-sample-cpu1"
    assert "train_batch" in (folder / f"{stem}.profile.txt").read_text()
    assert json.loads((folder / f"{stem}.trace.json").read_text())["traceEvents"]
    assert "memory for a batch of" in done.stdout


def test_a_full_disk_while_recording_is_one_line(tmp_path):
    import resource

    done = d2lpar(
        "run", "memory", f"--out={tmp_path}",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1)),
    )  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "File too large" in done.stderr.splitlines()[-1]


def flags_of(**changes):
    defaults = {
        "preset": "quick", "dry_run": False, "profile": False, "seed": 0,
        "data": "sample", "data_dir": None, "num_epochs": None, "lr": None,
        "global_batch_size": None, "micro_batch_size": None, "sync_batch_norm": None,
        "frames_every": None, "mp4": False,
    }  # fmt: skip
    return {**defaults, **changes}


def test_settings_of_presets_flags_and_dry_runs():
    lenet = get("multiple_gpus")
    preset, settings, data = run.settings_of(lenet, flags_of())
    assert preset == "quick" and settings["global_batch_size"] == 64
    assert (data["n_train"], data["n_test"], data["seed"]) == (5_000, 1_000, 0)
    preset, settings, _ = run.settings_of(lenet, flags_of(lr=0.1))
    assert (preset, settings["lr"]) == ("custom", 0.1)
    preset, settings, data = run.settings_of(lenet, flags_of(dry_run=True))
    assert (preset, settings["num_epochs"], data["n_train"]) == ("dry-run", 1, 128)
    large = flags_of(dry_run=True, global_batch_size=2**31 - 1)
    assert run.settings_of(lenet, large)[2]["n_train"] == 5_000
    preset, settings, _ = run.settings_of(get("gan"), flags_of(data="synthetic"))
    assert preset == "quick" and "mp4" not in settings


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
    with pytest.raises(SettingError, match="--mp4: does not apply"):
        chapter.measure("multiple_gpus", mp4=True)


def test_the_working_directory_may_be_gone(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    code = (
        "import os, sys; os.rmdir(os.getcwd()); "
        "from d2lpar.cli import main; sys.argv = ['d2lpar', 'plot', 'x']; main.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=gone,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
