"""`chapter.measure` in a notebook: arguments, curves, figures, records."""

import base64
import io
import json

import jupytext
import pytest
from PIL import Image

from d2lpar.cli import notebook
from d2lpar.figures import live
from d2lpar.records.kinds import EpochRecord, PointRecord, StepRecord

CELLS = """
# %%
from d2lpar import chapter, lenet

presets = {"quick": {"num_epochs": 10, "global_batch_size": 256, "lr": 0.2}}

# %%
runs = chapter.measure(
    "some_chapter", lenet.WORKLOAD, presets, num_devices=[1, 2], devices="cpu:2",
    data="synthetic", dry_run=True, num_epochs=2, global_batch_size=64, lr=0.1,
)

# %%
import json

header = runs[1].header
print(json.dumps([len(runs), header.settings, header.command, str(runs[1].path)]))
print([epoch.epoch for run in runs for epoch in run.epochs])

# %%
for wrong in ({"learning_rate": 0.1}, {"lr": -1}, {"devices": "cpu:0"}):
    try:
        chapter.measure("some_chapter", lenet.WORKLOAD, presets, **wrong)
    except ValueError as error:
        print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The cells' outputs, after a kernel of their own has run them; and its folder."""
    pytest.importorskip("ipykernel", reason="no notebook kernel: extra test")
    nbclient = pytest.importorskip("nbclient", reason="no nbclient: extra test")
    cells = jupytext.reads(CELLS.strip(), fmt="py:percent")
    folder = tmp_path_factory.mktemp("notebook")
    client = nbclient.NotebookClient(cells, timeout=120, kernel_name="python3")
    client.execute(cwd=str(folder))
    return [cell.outputs for cell in cells.cells], folder


def pictures(outputs):
    return [
        Image.open(io.BytesIO(base64.b64decode(output["data"]["image/png"])))
        for output in outputs
        if "image/png" in output.get("data", {})
    ]


def test_arguments_are_flags_and_the_records_come_back(executed):
    (_, _, said, wrong), folder = executed
    facts, epochs = said[0]["text"].splitlines()
    count, settings, command, path = json.loads(facts)
    assert count == 2 and epochs == "[1, 2, 1, 2]"
    assert (settings["lr"], settings["global_batch_size"]) == (0.1, 64)
    assert command.startswith("d2lpar run some_chapter ") and "--lr=0.1" in command
    assert "--num-devices=1,2" in command and "--dry-run" in command
    assert (folder / path).name == "dry-run-synthetic-cpu2.jsonl"
    assert (folder / path).is_file()
    unknown, rate, device = wrong[0]["text"].splitlines()
    assert unknown.startswith("SettingError some_chapter: No such option")
    assert "--learning-rate" in unknown
    assert rate.startswith("SettingError") and "-1" in rate
    assert device.startswith("DeviceError") and "cpu:0" in device


def test_curves_grow_in_one_output_and_the_figures_follow(executed):
    (_, outputs, _, _), _ = executed
    shown = [output for output in outputs if "data" in output]
    assert "epoch 4/4, loss=" in shown[0]["data"]["text/plain"]  # the last update
    curves, *figures = pictures(outputs)
    assert curves.width > 1.8 * curves.height  # loss and accuracy
    assert len(figures) == 2  # accuracy, seconds
    printed = "".join(o.get("text", "") for o in outputs if o.output_type == "stream")
    assert printed.count("test acc: ") == 2 and "figure: " not in printed
    assert "Python and MXNet" in printed  # a table, as text: the memory it needs
    size = sum(len(o["data"]["image/png"]) for o in shown)
    assert size < 300_000


def epoch(number, loss):
    return EpochRecord(number, 2.0, 6_000.0, train_loss=loss, test_acc=0.8)


def test_curves_of_the_kinds_of_lines():
    assert epoch(3, 0.5).curves() == {
        "epoch": 3, "training loss": 0.5, "test accuracy": 0.8,
    }  # fmt: skip
    assert list(PointRecord(1, 0.1, 9.0, []).curves().values()) == [1, 9.0]
    assert StepRecord(8, 1, [0.1], [0.1]).curves() == {}


def test_a_live_picture_has_a_panel_for_each_curve():
    one = ("1 device", [epoch(1, 2.3).curves(), epoch(2, 0.9).curves()])
    repeat = ("1 device", [epoch(1, 2.2).curves()])
    two = Image.open(io.BytesIO(live.png([one, repeat], "epoch 2")))
    single = live.png([("cgls", [PointRecord(1, 0.1, 9.0, []).curves()])], "point 1")
    assert two.width == 2 * Image.open(io.BytesIO(single)).width


def test_a_figure_is_shown_small(monkeypatch, tmp_path):
    shown = []
    pytest.importorskip("IPython", reason="no notebook kernel: extra test")
    monkeypatch.setattr("IPython.display.display", shown.append)
    picture = Image.effect_noise((300, 150), 30).convert("RGB")
    picture.save(tmp_path / "a.png", dpi=(150, 150))
    notebook.show_figure(tmp_path / "a.png")
    assert (shown[0].width, shown[0].format) == (192, "png")
    picture.save(tmp_path / "a.gif")
    notebook.show_figure(tmp_path / "a.gif")
    assert shown[1].format == "gif"
    assert shown[1].data == (tmp_path / "a.gif").read_bytes()
