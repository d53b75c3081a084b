"""What a picture shows, for tests."""

from matplotlib.text import Text


def medians(axes):
    """The large dots of rows of samples, downwards."""
    large = [line for line in axes.lines if line.get_marker() == "o"]
    return [float(line.get_xdata()[0]) for line in large]


def words(picture):
    """All texts in a picture or its axes."""
    return [text.get_text() for text in picture.findobj(Text)]
