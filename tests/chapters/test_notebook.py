"""`chapter.measure` in a notebook: arguments, curves, figures, records."""

import base64
import io
import json

import jupytext
import pytest
from PIL import Image

from d2lpar.cli import progress

CELLS = """
# %%
from d2lpar import chapter

runs = chapter.measure(
    "multiple_gpus", num_devices=[1, 2], devices="cpu:2", data="sample", dry_run=True,
    num_epochs=2, global_batch_size=64, lr=0.1,
)

# %%
import json

header = runs[1].header
print(json.dumps([len(runs), header.settings, header.command, str(runs[1].path)]))
print([epoch.epoch for run in runs for epoch in run.epochs])
"""

pytestmark = pytest.mark.slow


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
    (_, said), folder = executed
    facts, epochs = said[0]["text"].splitlines()
    count, settings, command, path = json.loads(facts)
    assert count == 2 and epochs == "[1, 2, 1, 2]"
    assert (settings["lr"], settings["global_batch_size"]) == (0.1, 64)
    assert command.startswith("d2lpar run multiple_gpus ") and "--lr=0.1" in command
    assert "--num-devices=1,2" in command and "--dry-run" in command
    assert (folder / path).name == "dry-run-sample-cpu2.jsonl"
    assert (folder / path).is_file()


def test_curves_grow_in_one_output_and_the_figures_follow(executed):
    (outputs, _), _ = executed
    shown = [output for output in outputs if "data" in output]
    assert "epoch 2/2, loss" in shown[0]["data"]["text/plain"]  # the last update
    curves, *figures = pictures(outputs)
    assert curves.width > 1.8 * curves.height  # loss and accuracy
    assert len(figures) == 2  # accuracy, seconds
    printed = "".join(o.get("text", "") for o in outputs if o.output_type == "stream")
    assert "speedup" in printed and "file:" not in printed
    size = sum(len(o["data"]["image/png"]) for o in shown)
    assert size < 300_000


def test_a_figure_is_shown_at_its_size_on_a_page(monkeypatch, tmp_path):
    shown = []
    pytest.importorskip("IPython", reason="no notebook kernel: extra test")
    monkeypatch.setattr("IPython.display.display", shown.append)
    picture = Image.effect_noise((300, 150), 30).convert("RGB")
    picture.save(tmp_path / "a.png", dpi=(150, 150))
    progress.show_figure(tmp_path / "a.png")
    assert (shown[0].width, shown[0].format) == (192, "png")
    picture.save(tmp_path / "a.gif")
    progress.show_figure(tmp_path / "a.gif")
    assert shown[1].format == "gif"
    assert shown[1].data == (tmp_path / "a.gif").read_bytes()
