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
from PIL import Image
from support.command import d2lpar
from support.factories import epoch, gan_epoch, header

from d2lpar import chapter, experiments, gan
from d2lpar.cli import main
from d2lpar.errors import SettingError
from d2lpar.experiments import EXPERIMENTS, get
from d2lpar.records import checkpoints, files
from d2lpar.records.checkpoints import Checkpoint
from d2lpar.records.kinds import Run
from d2lpar.runs import measure

STEM = "dry-run-sample"


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
    assert {f"{STEM}-accuracy.png", f"{STEM}-seconds.png"} <= names
    assert not any("partial" in name for name in names)
    one, two = (files.read(folder / f"{STEM}-cpu{n}.jsonl") for n in (1, 2))
    losses = [[e.train_loss for e in r.epochs] for r in (one, two)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert "2 devices: epoch 2/2, loss" in done.stderr
    assert "memory for a batch of" in done.stdout and "2 contexts " in done.stdout
    links = [x for x in done.stdout.split() if x.startswith("file://")]
    (link,) = links
    assert link.endswith("/index.html")
    assert Path(url2pathname(urlparse(link).path)).is_file()
    printed = done.stdout.replace(str(folder.parent), "runs") + done.stderr
    assert max(map(len, printed.splitlines())) <= 80 and "\033" not in printed


def test_the_parent_of_a_run_is_lean_and_loads_no_mxnet(real_run):
    loaded = (real_run[0].parent / "modules").read_text().split()
    assert len([name for name in loaded if name.split(".")[0] == "d2lpar"]) <= 40
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
    paths = sorted(out.iterdir())
    assert f"{STEM}-accuracy.png" in {path.name for path in paths}
    assert len(done.stdout.splitlines()) == len(paths)
    for path in paths:
        assert imread(path).std() > 0.01
        np.testing.assert_array_equal(imread(path), imread(real_run[0] / path.name))


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


def test_sample_draws_from_the_networks_that_a_checkpoint_names(here, tmp_path):
    state = gan.start(3, 8, "spectral")
    state.epoch = 1
    lines = header(1, chapter="gan"), gan_epoch(1)
    saved = Checkpoint("gan", state.tensors(), state.facts(), lines)
    path = checkpoints.save(tmp_path, saved)
    here("sample", f"--checkpoint={path}", "--n=3", f"--out={tmp_path}/faces.png")
    assert Image.open(tmp_path / "faces.png").size == (5 * 24 * 8, 24 * 8)


def test_list_loads_no_mxnet_and_names_what_there_is():
    say = "lambda: print('mxnet' in sys.modules, 'matplotlib' in sys.modules)"
    listed = d2lpar("list", before=f"import atexit, sys; atexit.register({say})")
    *rows, loaded = listed.stdout.splitlines()
    assert [row.split()[1] for row in rows[1:]] == list(EXPERIMENTS)
    assert max(map(len, rows)) <= 80
    assert loaded == "False False"


def test_help(here):
    assert "\nCommands:\n" in here()  # alone it prints its help
    usage = here("run", "--help")
    assert max(map(len, usage.splitlines())) <= 80 and "--num-devices" in usage


def plan(name, **settings):
    jobs = measure.plan(get(name), "d2lpar run", devices="cpu:2", **settings)
    return jobs[0].preset, jobs[0].settings, jobs[0].data


def test_settings_of_presets_flags_and_dry_runs(tmp_path):
    of_lenet = {"name": "multiple_gpus", "data": "sample", "out": tmp_path}
    preset, settings, data = plan(**of_lenet)
    assert preset == "quick" and settings["global_batch_size"] == 64
    assert (data["n_train"], data["n_test"], data["seed"]) == (5_000, 1_000, 0)
    preset, settings, _ = plan(**of_lenet, lr=0.1)
    assert (preset, settings["lr"]) == ("custom", 0.1)
    preset, settings, data = plan(**of_lenet, dry_run=True)
    assert (preset, settings["num_epochs"], data["n_train"]) == ("dry-run", 1, 128)
    large = plan(**of_lenet, dry_run=True, global_batch_size=2**31 - 1)
    assert large[2]["n_train"] == 5_000
    of_gan = {"name": "gan", "data": "synthetic", "out": tmp_path}
    assert plan(**of_gan)[0] == "quick"
    # What makes another recipe stands in the record's name.
    preset, settings, _ = plan(**of_gan, d_norm="none")
    assert (preset, settings["d_norm"]) == ("quick-d-norm-none", "none")
    preset, settings, _ = plan(
        **of_gan, preset="sharp", sync_batch_norm=True, num_epochs=3
    )
    assert preset == "custom-sync-batch-norm" and settings["width"] == 64


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


def test_a_run_computes_its_result_once(monkeypatch, tmp_path, capsys):
    computed = []
    result = experiments.result
    monkeypatch.setattr(
        experiments, "result", lambda runs: computed.append(1) or result(runs)
    )
    monkeypatch.setattr(sys, "argv", ["multiple_gpus.py"])
    runs = [Run(header(), (epoch(1), epoch(2)), tmp_path / "lenet" / "book-cpu1.jsonl")]
    monkeypatch.setattr(measure.sweep, "sweep", lambda *args: runs)
    chapter.measure("multiple_gpus", devices="cpu:1", data="sample", out=tmp_path)
    assert len(computed) == 1 and "test accuracy" in capsys.readouterr().out


def test_a_chapter_as_a_script_takes_the_flags_of_run(monkeypatch, capsys):
    for words, code, says in (
        (["--epochs=3"], 2, "No such option '--epochs'"),
        (["--lr=0.1"], 2, "--lr 0.1: does not apply to kernels"),
    ):
        monkeypatch.setattr(sys, "argv", ["kernels.py", *words])
        with pytest.raises(SystemExit) as ended:
            chapter.measure("kernels")
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
