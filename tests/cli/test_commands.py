"""What the commands print and write, on one real run that all of these share."""

import sys

import numpy as np
import pytest
from matplotlib.image import imread
from support.command import d2lpar
from support.factories import epoch, header, training

from d2lpar import chapter, devices, experiments
from d2lpar.cli import main
from d2lpar.errors import SettingError
from d2lpar.experiments import EXPERIMENTS, LESSONS, get
from d2lpar.machine import host
from d2lpar.records import files
from d2lpar.runs import child, measure
from d2lpar.runs import plan as plans


@pytest.fixture
def here(monkeypatch, capsys):
    """A function: what `d2lpar WORDS` prints, run in this process."""

    def here(*words):
        monkeypatch.setattr(sys, "argv", ["d2lpar", *words])
        try:
            main.main()
        except SystemExit as ended:
            assert ended.code == 0  # after the help of verify
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


def test_plot_draws_the_same_again_without_mxnet_and_the_users_style(
    real_run, tmp_path, monkeypatch
):
    (tmp_path / "matplotlibrc").write_text("lines.linewidth: 9\nfont.size: 30\n")
    records = sorted(real_run[0].glob("*.jsonl"))
    out = tmp_path / "drawn"
    monkeypatch.setenv("MPLBACKEND", "x")  # no backend is needed, either
    without = "import sys; sys.modules['mxnet'] = None"
    done = d2lpar("plot", *records, f"--out={out}", before=without, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    paths = sorted(out.glob("multiple_gpus/*/*"))
    assert "accuracy.png" in {path.name for path in paths}
    assert len(done.stdout.splitlines()) == len(paths)
    for path in paths:
        assert imread(path).std() > 0.01
        np.testing.assert_array_equal(imread(path), imread(real_run[0] / path.name))


def test_a_resumed_run_begins_where_its_checkpoint_ends(real_run, tmp_path):
    """On another number of devices; the child's function, in this process."""
    checkpoint = max(real_run[0].glob("cpu1.*.safetensors"))
    (job,) = plans.plan(
        get("multiple_gpus"), "d2lpar run", devices="cpu:2", num_devices=2,
        data="sample", dry_run=True, num_epochs=3, resume=str(checkpoint), out=tmp_path,
    )  # fmt: skip
    head, *lines = child.lines_of(job)
    assert [e.resumed for e in lines] == ["elsewhere", "elsewhere", "here"]
    assert (head.num_devices, head.settings["resumed_at"]) == (2, 2)


def test_list_has_all_chapters_with_numbers_that_run_takes(here):
    *rows, empty, start = here("list").splitlines()
    numbers, names = zip(*(row.split()[:2] for row in rows))
    assert {*EXPERIMENTS, *LESSONS.values()} == {*names}
    assert [int(n) for n in numbers] == sorted(map(int, numbers))
    assert start == "Start with: d2lpar run multiple_gpus"
    for number, name in zip(numbers, names):
        if name in EXPERIMENTS:
            assert get(number).name == get(name).name == name
        else:
            for way in (number, name):
                with pytest.raises(SettingError, match=f"python chapters/{name}.py"):
                    get(way)


def test_help(here):
    # Alone it prints its help: the commands in the order of their use.
    commands = here().partition("\nCommands:\n")[2].splitlines()
    assert [line.split()[0] for line in commands if line[:3].strip()] == [
        *("list", "run", "report", "compare", "plot", "verify", "doctor", "launch"),
        "Example:",
    ]
    usage = here("run", "--help")
    assert max(map(len, usage.splitlines())) <= 80
    assert "[x>=1]" in usage


def plan(name, **settings):
    jobs = plans.plan(get(name), "d2lpar run", devices="cpu:2", **settings)
    assert jobs[0].folder.parent == settings["out"] / name
    return jobs[0].folder.name, jobs[0].settings, jobs[0]


def test_a_recipe_names_what_differs_from_a_preset(tmp_path):
    of_lenet = {"name": "multiple_gpus", "data": "sample", "out": tmp_path}
    recipe, settings, job = plan(**of_lenet)
    data = job.data
    assert recipe == "quick,sample" and settings["global_batch_size"] == 64
    assert (data["n_train"], data["n_test"], job.seed) == (5_000, 1_000, 0)
    recipe, settings, job = plan(**of_lenet, lr=1, seeds=2, threads=1)
    assert recipe == "quick,lr=1.0,sample,seed=2,threads=1" and job.seed == 2
    assert plan(**of_lenet, lr=1.0, seeds="2", threads=1)[0] == recipe
    assert plan(**of_lenet, lr=0.3)[0] == "quick,sample"  # that is the preset's
    recipe, settings, job = plan(**of_lenet, dry_run=True)
    assert recipe == "dry-run,sample"
    assert (settings["num_epochs"], job.data["n_train"]) == (1, 128)
    large = plan(**of_lenet, dry_run=True, global_batch_size=2**31 - 1)
    assert large[2].data["n_train"] == 5_000
    of_gan = {"name": "gan", "data": "synthetic", "out": tmp_path}
    recipe, settings, _ = plan(**of_gan, preset="sharp", d_norm="none", seeds=[1])
    assert recipe == "sharp,d_norm=none,synthetic,seed=1" and settings["width"] == 64
    recipes = {plan(**of_gan, d_norm="none", sync_batch_norm=True, lr=lr,
                    num_epochs=3, frames_every=2)[0] for lr in (0.1, 0.2)}  # fmt: skip
    assert len(recipes) == 2 and {len(r) for r in recipes} == {len("quick,12345678")}
    both = {"name": "least_squares", "out": tmp_path, "num_devices": [1, 2]}
    assert plan(**both)[0] == "quick"


def test_what_the_user_set_in_the_environment_is_part_of_recipe_and_header(
    tmp_path, monkeypatch
):
    """Another engine replaced a normal record, and no header said so."""
    monkeypatch.setattr(host, "set_by_us", set())
    changed = {"MXNET_CPU_TEMP_COPY": "4", "MXNET_ENGINE_TYPE": "NaiveEngine"}
    for name, value in {**changed, "OMP_NUM_THREADS": "1", "MXNET_HOME": "x"}.items():
        monkeypatch.setenv(name, value)
    host.set_defaults(host.ENGINE_DEFAULTS)  # ours are no change
    words = {"data": "sample", "out": tmp_path, "devices": "cpu:1"}
    (job,) = plans.plan(get("multiple_gpus"), "d2lpar run", **words)
    assert job.folder.name == plans.named_by(
        "quick", {"sample": True, "threads": 1, **changed}
    )
    data = experiments.load(job.experiment.load)(**{**job.data, "n_train": 60})
    head = child.header_of(job, devices.contexts(job.devices), data)
    assert head.settings["environment"] == changed
    for name in changed:  # of which a GAN has one of its own
        monkeypatch.delenv(name)
    host.set_defaults(host.ENGINE_DEFAULTS)
    assert plan("gan", data="synthetic", out=tmp_path)[0] == "quick,synthetic,threads=1"


def test_a_chapter_of_several_methods_measures_each_on_each_count(tmp_path):
    solver = get("least_squares")
    how = {"devices": "cpu:2", "num_devices": [1, 2], "out": tmp_path}
    jobs = plans.plan(solver, "d2lpar run least_squares", **how)
    each = [variant for job in jobs for variant in job.each_variant()]
    measured = [(len(job.devices), job.settings["method"]) for job in each]
    methods = [more["method"] for more in solver.variants.values()]
    assert measured == [(n, method) for n in (1, 2) for method in methods]


def test_a_notebook_raises_and_a_script_hands_its_command_line_on(monkeypatch, capsys):
    ran = []
    monkeypatch.setattr(
        measure, "plan", lambda *args, **how: ran.append((args, how)) or [][0]
    )
    argv = ["multiple_gpus.py", "--lr=0.5", "--devices=cpu:1"]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(IndexError):
        chapter.measure("multiple_gpus", num_devices=[1])
    (_, command), settings = ran[0]
    assert settings == {"num_devices": [1], "lr": 0.5, "devices": "cpu:1"}
    assert command.endswith("multiple_gpus --num-devices=1 --lr=0.5 --devices=cpu:1")
    with pytest.raises(SystemExit, match="^2$"):
        chapter.measure("timing")
    assert "--lr 0.5: does not apply to timing" in capsys.readouterr().err
    monkeypatch.setattr(chapter, "in_notebook", lambda: True)
    with pytest.raises(IndexError):
        chapter.measure("multiple_gpus", devices="cpu:1")
    assert ran[1][1] == {"devices": "cpu:1"}  # a notebook's command line is not read
    with pytest.raises(SettingError, match="--depth 3: does not apply"):
        chapter.measure("multiple_gpus", depth=3)


@pytest.mark.parametrize("quiet", [False, True])
def test_a_run_prints_what_it_found_and_where_its_page_is(
    quiet, monkeypatch, tmp_path, here
):
    def sweep(jobs, see):
        path = jobs[0].folder / "cpu1.jsonl"
        files.write(path, header(), (epoch(1), epoch(2)))
        return [files.read(path)]

    monkeypatch.setattr(measure.sweep, "sweep", sweep)
    words = ["run", "1", "--devices=cpu:1", "--data=sample", "-o", str(tmp_path)]
    printed = here(*words, *(["-q"] if quiet else []))
    if quiet:
        assert printed.split() == "multiple_gpus: accuracy 0.400 after epoch 2".split()
    else:
        assert "test accuracy" in printed
        (link,) = [word for word in printed.split() if word.startswith("file://")]
        assert link.endswith("/index.html")
    assert (tmp_path / "index.html").is_file()


def test_workers_share_the_cores(here, monkeypatch):
    launched = []
    monkeypatch.setattr(host, "usable_cores", lambda: 8)
    monkeypatch.setattr("d2lpar.workers.launch.launch", lambda *a: launched.append(a))
    here("launch", "--workers=4", "--", "run", "multiple_machines")
    ((program, workers),) = launched
    assert program[-2:] == ["--threads=2", "--devices=cpu:1"] and workers == 4


def test_no_command_cuts_a_word(here, monkeypatch, tmp_path):
    """Lines end between words at the terminal's width; only a path may be longer."""
    runs = []
    for n, seconds in ((1, (9.0, 2.0, 1.8, 2.2, 2.0)), (2, (9.0, 1.0, 3.0, 2.0, 2.0))):
        run = training(n, seconds, preset="quick", recipe="quick,sample")
        path = tmp_path / "multiple_gpus" / "quick,sample" / f"cpu{n}.jsonl"
        files.write(path, run.header, run.lines)
        runs.append(files.read(path))
    monkeypatch.setattr(measure.sweep, "sweep", lambda *args: runs)
    out = f"--out={tmp_path}"
    for words in (
        # Without --data the real images are looked up on the network.
        ["run", "multiple_gpus", "--devices=cpu:2", "--data=sample", out],
        ["list"],
        ["report", out],
        ["compare", *(str(run.path) for run in runs)],
        ["verify", "--help"],
    ):
        printed = {}
        for width in (60, 100):
            monkeypatch.setenv("COLUMNS", str(width))
            printed[width] = here(*words)
        lines = printed[60].splitlines()
        assert not [x for x in lines if len(x) > 60 and str(tmp_path) not in x]
        assert {*printed[100].split()} <= {*printed[60].split()}, words


def test_what_a_record_says_does_not_reach_the_terminal_raw(here, tmp_path):
    """Escape sequences would set the terminal's title, or move its cursor."""
    for name, model in (("a", "CPU"), ("b", "\x1b]0;pwned\x07")):
        lines = [header(1, cpu_model=model), epoch(1), epoch(2)]
        text = "".join(f"{files.to_line(line)}\n" for line in lines)
        (tmp_path / f"{name}.jsonl").write_text(text)
    out = here("compare", str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"))
    assert "pwned" in out and "samples/s" in out
    assert not set(out) & {"\x1b", "\x07"}
