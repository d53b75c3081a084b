"""Pictures and words in the output of a notebook's cell."""

from __future__ import annotations

import base64
import io
import sys
from pathlib import Path


def is_here() -> bool:
    """Whether this process is a notebook's kernel."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return hasattr(get_ipython(), "kernel")


class Output:
    """One output of a cell, whose content is replaced by what is shown next."""

    def __init__(self) -> None:
        self._handle = None

    def show(self, words: str, png: bytes | None = None) -> None:
        """Show a picture or, without one, the words."""
        from IPython.display import display

        content = {"text/plain": words}
        if png is not None:
            content["image/png"] = base64.b64encode(png).decode()
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


def show_figure(path: Path) -> None:
    """Show a figure's PNG, or an animation's GIF, at its size on a page.

    A PNG is shown with 256 colours, which figures hardly exceed: a notebook holds its
    pictures, and so is a third as large.
    """
    from IPython.display import Image, display
    from PIL import Image as Pillow

    if path.suffix != ".png":
        display(Image(path.read_bytes(), format=path.suffix[1:]))
        return
    with Pillow.open(path) as picture:
        small, dots_per_inch = io.BytesIO(), picture.info.get("dpi", (96, 96))[0]
        picture.convert("RGB").quantize(256).save(small, "png", optimize=True)
        width = round(picture.width * 96 / dots_per_inch)
    display(Image(small.getvalue(), format="png", width=width))
