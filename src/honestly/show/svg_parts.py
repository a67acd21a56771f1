"""What curves and heatmaps as SVG have in common: escaped text, positions, the frame."""

from __future__ import annotations

from markupsafe import escape

from honestly.show.text import shorten


def escape_text(text: object, most: int = 200) -> str:
    """Text for markup: printable, bounded, escaped."""
    return str(escape(shorten(text, most)))


def percent(value: float) -> str:
    """A position as a share of the width."""
    return f"{100 * value:.2f}".rstrip("0").rstrip(".") + "%"


class Drawing:
    """The content of a drawing and the margins that its labels need."""

    def __init__(self, height: float, left: float, below: float, above: float = 8) -> None:
        self.height, self.left, self.below, self.above = height, left, below, above
        self.shape: tuple[int, int] = (0, 0)  # rows and columns of a map
        self.parts: list[str] = []

    def frame(self, label: str, live: bool) -> str:
        """The drawing.

        The policy of the live page forbids styles in attributes, so its script sets the margins. It also needs the
        number of rows and columns, to find the cell under the pointer.
        """
        room = f"--left:{self.left:g}px;--below:{self.below:g}px;--above:{self.above:g}px"
        shape = "{} {}".format(*self.shape)
        margins = f'data-room="{room}" data-shape="{shape}"' if live else f'style="{room}"'
        return (
            f'<svg class="plot" height="{self.height:g}" {margins} role="img" aria-label="{escape_text(label, 1000)}">'
            f"{''.join(self.parts)}</svg>"
        )
