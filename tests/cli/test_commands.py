"""What the commands print and write, on one real run that all of these share."""

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

import numpy as np
import pytest
from matplotlib.image import imread
from support.command import d2lpar
from support.factories import epoch, gan_epoch, header, training

from d2lpar import chapter, gan, verify
from d2lpar.cli import main
from d2lpar.errors import CheckpointError, SettingError
from d2lpar.experiments import EXPERIMENTS, get
from d2lpar.machine import host
from d2lpar.records import checkpoints, files
from d2lpar.records.checkpoints import Checkpoint
from d2lpar.records.kinds import Run
from d2lpar.runs import measure
from d2lpar.runs import plan as plans
from d2lpar.verify import Check


@pytest.fixture
def here(monkeypatch, capsys):
    """A function: what `d2lpar WORDS` prints, run in this process."""

    def here(*words):
        monkeypatch.setattr(sys, "argv", ["d2lpar", *words])
        main.main()  # exits unless the code is 0
        return capsys.readouterr().out

    return here


def test_a_run_leaves_records_and_pictures_and_says_what_it_found(real_run):
    folder, done = real_run
    assert done.returncode == 0, done.stderr
    names = {path.name for path in folder.iterdir() if path.name[0] != "."}
    assert {"accuracy.png", "seconds.png"} <= names
    assert not any("partial" in name for name in names)
    one, two = (files.read(folder / f"cpu{n}.jsonl") for n in (1, 2))
    losses = [[e.train_loss for e in r.epochs] for r in (one, two)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert "2 devices: epoch 2/2, loss" in done.stderr
    assert "memory for a batch of" in done.stdout and "2 CPU contexts" in done.stdout
    # The batches of a dry run measure nothing: no table, and no page.
    assert done.stdout.endswith(
        "It runs on 1 and 2 devices. These few batches measure nothing.\n"
    )
    assert "s/epoch" not in done.stdout
    assert not (folder.parents[1] / "index.html").exists()
    printed = done.stdout.replace(str(folder.parents[1]), "runs") + done.stderr
    assert max(map(len, printed.splitlines())) <= 80 and "\033" not in printed


def test_the_parent_of_a_run_is_lean_and_loads_no_mxnet(real_run):
    loaded = (real_run[0].parents[1] / "modules").read_text().split()
    assert len([name for name in loaded if name.split(".")[0] == "d2lpar"]) <= 44
    assert "mxnet" not in loaded


def test_plot_draws_the_same_again_without_mxnet_and_the_users_style(
    real_run, tmp_path
):
    (tmp_path / "matplotlibrc").write_text("lines.linewidth: 9\nfont.size: 30\n")
    records = sorted(real_run[0].glob("*.jsonl"))
    out = tmp_path / "drawn"
    # No backend of the environment is needed, either.
    without = (
        "import os, sys; sys.modules['mxnet'] = None; os.environ['MPLBACKEND'] = 'x'"
    )
    done = d2lpar("plot", *records, f"--out={out}", before=without, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    paths = sorted(out.glob("multiple_gpus/*/*"))
    assert "accuracy.png" in {path.name for path in paths}
    assert len(done.stdout.splitlines()) == len(paths)
    for path in paths:
        assert imread(path).std() > 0.01
        np.testing.assert_array_equal(imread(path), imread(real_run[0] / path.name))


def test_the_same_bits_in_records_and_after_a_resume_elsewhere(tmp_path):
    same = ["run", "multiple_gpus", "--num-epochs=2", f"--out={tmp_path}"]
    d2lpar(
        *same, "--same-bits", "--dry-run", "--data=sample", "--devices=cpu:2",
        "--checkpoint-every=1",
    )  # fmt: skip
    (folder,) = tmp_path.glob("multiple_gpus/*")
    assert "same_bits" in folder.name
    checkpoint = folder / "cpu1.epoch000001.safetensors"
    d2lpar(*same, f"--resume={checkpoint}", "--devices=cpu:3", "--num-devices=3")
    runs = [files.read(folder / f"cpu{n}.jsonl") for n in (1, 2, 3)]
    assert len({run.epochs[-1].params_sha256 for run in runs} - {None}) == 1
    assert [run.header.settings["same_bits"] for run in runs] == [True] * 3
    assert {run.header.threads_per_device for run in runs} == {1}


def test_resume_takes_the_settings_of_its_checkpoint(real_run, tmp_path):
    checkpoint = max(real_run[0].glob("cpu1.*.safetensors"))
    done = d2lpar(
        "run", "multiple_gpus", "--devices=cpu:2", "--num-devices=2",
        "--num-epochs=3", f"--resume={checkpoint}", f"--out={tmp_path}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (record,) = tmp_path.glob("multiple_gpus/dry-run,num_epochs=3,sample*/cpu2.jsonl")
    resumed = files.read(record)
    assert [e.resumed for e in resumed.epochs] == ["elsewhere", "elsewhere", "here"]
    assert resumed.header.settings["n_train"] == 128


@pytest.fixture
def trained(tmp_path):
    """A folder of outputs with the checkpoint of a GAN of other settings."""
    settings = {**EXPERIMENTS["gan"].presets["quick"], "lr": 0.01, "num_epochs": 7}
    head = header(
        chapter="gan", preset="quick", recipe="quick,lr=0.01", seed=3,
        dataset="synthetic-punks", settings=settings,
    )  # fmt: skip
    state = gan.start(3, settings["width"], settings["d_norm"])
    state.epoch = 1
    saved = Checkpoint("gan", state.tensors(), state.facts(), (head, gan_epoch(1)))
    return tmp_path, checkpoints.save(tmp_path / "gan" / "quick,lr=0.01", saved)


def test_the_flags_of_a_checkpoint_are_those_that_differ_from_its_preset(trained):
    out, path = trained
    kept = {"preset": "quick", "seed": 3, "data": "synthetic", "lr": 0.01}
    for resume in (path, "last"):
        given = {"resume": str(resume), "out": str(out), "num_epochs": 9}
        flags = plans.continued(get("gan"), given)
        assert flags == {**kept, **given, "resume": str(path)}
    # The same said again is no contradiction.
    given = {"resume": str(path), "preset": "quick", "lr": 0.01, "num_epochs": 7}
    assert plans.continued(get("gan"), given)["num_epochs"] == 7


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"lr": 0.5}, "lr 0.01"),
        ({"seed": 4}, "seed 3"),
        ({"preset": "sharp"}, "global_batch_size 32, lr 0.01, .*width 16"),
        ({"data": "cryptopunks"}, "data synthetic"),
    ],
)
def test_a_flag_that_contradicts_a_checkpoint_is_refused(trained, flags, says):
    out, path = trained
    given = {"resume": str(path), "out": str(out), **flags}
    with pytest.raises(CheckpointError, match=f"was trained with {says}"):
        plans.continued(get("gan"), given)


def test_list_loads_no_mxnet_and_names_what_there_is():
    say = "lambda: print('mxnet' in sys.modules, 'matplotlib' in sys.modules)"
    listed = d2lpar("list", before=f"import atexit, sys; atexit.register({say})")
    *rows, empty, start, loaded = listed.stdout.splitlines()
    assert [row.split()[1] for row in rows[1:]] == list(EXPERIMENTS)
    assert start == "Start with: d2lpar run multiple_gpus"
    assert max(map(len, rows)) <= 80
    assert loaded == "False False"


def test_help(here):
    # Alone it prints its help: the commands in the order of their use.
    commands = here().partition("\nCommands:\n")[2]
    order = [commands.index(f"\n  {name} ") for name in ("run", "report", "launch")]
    assert commands.startswith("  list ") and order == sorted(order)
    usage = here("run", "--help")
    assert max(map(len, usage.splitlines())) <= 80 and "--num-devices" in usage
    assert str(2**31 - 1) not in usage and "[x>=1]" in usage


def plan(name, **settings):
    jobs = measure.plan(get(name), "d2lpar run", devices="cpu:2", **settings)
    assert jobs[0].folder == settings["out"] / name / jobs[0].recipe
    return jobs[0].recipe, jobs[0].settings, jobs[0].data


def test_a_recipe_names_what_differs_from_a_preset(tmp_path):
    of_lenet = {"name": "multiple_gpus", "data": "sample", "out": tmp_path}
    recipe, settings, data = plan(**of_lenet)
    assert recipe == "quick,sample" and settings["global_batch_size"] == 64
    assert (data["n_train"], data["n_test"], data["seed"]) == (5_000, 1_000, 0)
    recipe, settings, _ = plan(**of_lenet, lr=0.1, seed=2, threads=1)
    assert recipe == "quick,lr=0.1,sample,seed=2,threads=1" and settings["lr"] == 0.1
    assert plan(**of_lenet, lr=0.3)[0] == "quick,sample"  # that is the preset's
    recipe, settings, data = plan(**of_lenet, dry_run=True)
    assert recipe == "dry-run,sample"
    assert (settings["num_epochs"], data["n_train"]) == (1, 128)
    large = plan(**of_lenet, dry_run=True, global_batch_size=2**31 - 1)
    assert large[2]["n_train"] == 5_000
    of_gan = {"name": "gan", "data": "synthetic", "out": tmp_path}
    recipe, settings, _ = plan(**of_gan, preset="sharp", d_norm="none", seed=1)
    assert recipe == "sharp,d_norm=none,synthetic,seed=1" and settings["width"] == 64
    recipes = {plan(**of_gan, d_norm="batch-apart", sync_batch_norm=True, lr=lr,
                    num_epochs=3, frames_every=2)[0] for lr in (0.1, 0.2)}  # fmt: skip
    assert len(recipes) == 2 and {len(r) for r in recipes} == {len("quick,12345678")}
    both = {"name": "least_squares", "out": tmp_path, "num_devices": [1, 2]}
    assert plan(**both)[0] == "quick"


def test_what_the_user_set_in_the_environment_is_part_of_the_recipe(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("MXNET_CPU_TEMP_COPY", "4")
    monkeypatch.setattr(host, "set_by_us", set())
    recipe, *_ = plan("gan", data="synthetic", out=tmp_path)
    assert recipe == "quick,synthetic,threads=1,MXNET_CPU_TEMP_COPY=4"


def test_a_chapter_of_several_methods_measures_each_on_each_count(tmp_path):
    solver = get("least_squares")
    how = {"devices": "cpu:2", "num_devices": [1, 2], "out": tmp_path}
    jobs = measure.plan(solver, "d2lpar run least_squares", **how)
    each = [variant for job in jobs for variant in job.each_variant()]
    measured = [(len(job.devices), job.settings["method"]) for job in each]
    methods = [more["method"] for more in solver.variants.values()]
    assert measured == [(n, method) for n in (1, 2) for method in methods]


def test_a_notebook_raises_and_a_script_hands_its_command_line_on(monkeypatch):
    ran = []
    monkeypatch.setattr(
        measure, "plan", lambda *args, **how: ran.append((args, how)) or [][0]
    )
    monkeypatch.setattr(
        sys, "argv", ["multiple_gpus.py", "--lr=0.5", "--devices=cpu:1"]
    )
    with pytest.raises(IndexError):
        chapter.measure("multiple_gpus", num_devices=[1])
    (_, command), settings = ran[0]
    assert settings == {"num_devices": [1], "lr": 0.5, "devices": "cpu:1"}
    assert command.endswith("multiple_gpus --num-devices=1 --lr=0.5 --devices=cpu:1")
    monkeypatch.setattr(chapter, "in_notebook", lambda: True)
    with pytest.raises(IndexError):
        chapter.measure("multiple_gpus", devices="cpu:1")
    assert ran[1][1] == {"devices": "cpu:1"}  # a notebook's command line is not read
    with pytest.raises(SettingError, match="--depth 3: does not apply"):
        chapter.measure("multiple_gpus", depth=3)


def test_a_run_prints_what_it_found_and_where_its_page_is(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(sys, "argv", ["multiple_gpus.py"])
    runs = [Run(header(), (epoch(1), epoch(2)), tmp_path / "cpu1.jsonl")]
    monkeypatch.setattr(measure.sweep, "sweep", lambda *args: runs)
    chapter.measure("multiple_gpus", devices="cpu:1", data="sample", out=tmp_path)
    printed = capsys.readouterr().out
    assert "test accuracy" in printed
    (link,) = [word for word in printed.split() if word.startswith("file://")]
    assert link.endswith("/index.html")
    assert Path(url2pathname(urlparse(link).path)).is_file()


@pytest.mark.parametrize("columns", [60, 80])
def test_no_command_cuts_a_word(columns, here, monkeypatch, tmp_path):
    """Lines end between words at the terminal's width; only a path may be longer."""
    monkeypatch.setattr(measure, "check_installed", lambda: None)
    runs = []
    for n, seconds in ((1, (9.0, 2.0, 1.8, 2.2, 2.0)), (2, (9.0, 1.0, 3.0, 2.0, 2.0))):
        run = training(n, seconds, preset="quick", recipe="quick,sample")
        path = tmp_path / "multiple_gpus" / "quick,sample" / f"cpu{n}.jsonl"
        files.write(path, run.header, run.lines)
        runs.append(files.read(path))
    monkeypatch.setattr(measure.sweep, "sweep", lambda *args: runs)
    check = Check("gradients", "right", 12 * "they are summed, not averaged; ")
    monkeypatch.setattr(verify, "verify", lambda *args, **how: [check])
    (tmp_path / "step.py").touch()
    one, two = (str(run.path) for run in runs)
    data = ["--data=sample"]  # without it, the real images are looked up on the network
    commands = (
        ["run", "multiple_gpus", "--devices=cpu:2", *data, f"--out={tmp_path}"],
        ["list"],
        ["report", f"--out={tmp_path}"],
        ["compare", one, two],
        ["verify", str(tmp_path / "step.py")],
    )  # fmt: skip
    for words in commands:
        printed = {}
        for width in (columns, 100):
            monkeypatch.setenv("COLUMNS", str(width))
            printed[width] = here(*words)
        lines = printed[columns].splitlines()
        assert not [x for x in lines if len(x) > columns and str(tmp_path) not in x]
        assert {*printed[100].split()} <= {*printed[columns].split()}, words


def test_a_chapter_as_a_script_takes_the_flags_of_run(monkeypatch, capsys):
    for words, code, says in (
        (["--epochs=3"], 2, "No such option '--epochs'"),
        (["--lr=0.1"], 2, "--lr 0.1: does not apply to timing"),
    ):
        monkeypatch.setattr(sys, "argv", ["timing.py", *words])
        with pytest.raises(SystemExit) as ended:
            chapter.measure("timing")
        said = capsys.readouterr().err
        assert ended.value.code == code and says in said and said.count("\n") == 1


def test_the_reader_of_the_output_may_be_gone():
    """As in `d2lpar list | true`: not 1, which is `doctor`'s, and nothing is said."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "d2lpar", "list"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_what_a_record_says_does_not_reach_the_terminal_raw(here, tmp_path):
    """Escape sequences would set the terminal's title, or move its cursor."""
    for name, model in (("a", "CPU"), ("b", "\x1b]0;pwned\x07")):
        lines = [header(1, cpu_model=model), epoch(1), epoch(2)]
        text = "".join(f"{files.to_line(line)}\n" for line in lines)
        (tmp_path / f"{name}.jsonl").write_text(text)
    out = here("compare", str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"))
    assert "pwned" in out and "samples/s" in out
    assert not set(out) & {"\x1b", "\x07"}
