"""Pictures of the documentation are those that their commands draw now."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

FIGURES = Path(__file__).resolve().parents[2] / "docs" / "figures"


def test_the_tutorial_shows_the_picture_of_its_run(tmp_path: Path) -> None:
    """It showed a green and red one for weeks. Training differs in the last bits between machines, hence a bound."""
    from PIL import Image

    sys.path.insert(0, str(FIGURES))
    try:
        from tutorial import draw  # pyright: ignore[reportMissingImports]
    finally:
        sys.path.remove(str(FIGURES))
    draw(tmp_path / "now.png")
    now, kept = (
        np.asarray(Image.open(path).convert("RGB"), np.float64)
        for path in (tmp_path / "now.png", FIGURES / "tutorial.png")
    )
    assert now.shape == kept.shape
    assert np.abs(now - kept).mean() < 6
