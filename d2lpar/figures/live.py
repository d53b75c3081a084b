"""The curves of running trainings, in one output of a notebook."""

import io
import time

from matplotlib.figure import Figure

from d2lpar.figures import page
from d2lpar.records.kinds import Header

CURVES = ("train_loss", "test_acc", "d_loss", "g_loss", "residual_norm")


class Curves:
    """Show one panel, as in the book, with a curve for each measure of each run."""

    def __init__(self, in_words):
        from IPython.display import display

        self.in_words, self.run, self.words = in_words, "", ""
        self.curves, self.shown_at = {}, 0.0
        self.output = display({"text/plain": ""}, raw=True, display_id=True)

    def see(self, line):
        if isinstance(line, Header):
            self.run = f"{line.device_kind}:{line.num_devices} {line.variant}".strip()
            self.num_epochs = line.settings.get("num_epochs", 0)
        elif words := self.in_words(line, self.num_epochs):
            self.words = f"{self.run}: {words}"
            at = getattr(line, "epoch", getattr(line, "iteration", None))
            for name in CURVES:
                # A repeat has the curve of the first.
                if hasattr(line, name) and not line.repeat:
                    label = f"{name.replace('_', ' ')}, {self.run}"
                    self.curves.setdefault(label, []).append((at, getattr(line, name)))
            if time.monotonic() >= self.shown_at + 0.3:
                self.close()

    def close(self):
        """Show the curves under the newest words; without curves the words alone."""
        self.shown_at = time.monotonic()
        content = {"text/plain": self.words}
        if self.curves:
            axes = Figure(figsize=(6.2, 3.1), layout="tight").subplots()
            axes.set(title=self.words, xlabel="epoch or iteration")
            for k, (label, points) in enumerate(self.curves.items()):
                axes.plot(*zip(*points), **page.look(k, label=label))
            axes.legend()
            axes.figure.savefig(png := io.BytesIO(), format="png", dpi=90)
            content["image/png"] = png.getvalue()
        self.output.update(content, raw=True)
