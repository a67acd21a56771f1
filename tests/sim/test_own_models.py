"""Models of the user's own: what is wrong with one is said, and any other is trained as it is written."""

import textwrap

import pytest
from torch import nn

from honestly.sim.models import build
from honestly.sim.train.compiled.structures import layers_of

MODELS = """
    from torch import nn


    class Pair(nn.Module):
        def __init__(self, *size):
            super().__init__()
            self.layer = nn.Linear(64, 10)

        def forward(self, x):
            return self.layer(x.flatten(1)), x


    def narrow(c, h, w, n):
        return nn.Sequential(nn.Flatten(), nn.Linear(7, n))


    def few(c, h, w, n):
        return nn.Sequential(nn.Flatten(), nn.Linear(c * h * w, 3))


    def flat(c, h, w, n):
        return nn.Flatten()


    def maps(c, h, w, n):
        return nn.Conv2d(c, n, 3)


    def lazy(c, h, w, n):
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(n))
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Pair", "makes of two images a tuple: expected a score of each of 10 classes"),
        ("narrow", r"fails on images of \(channels, height, width\) = \(1, 8, 8\): mat1 and mat2"),
        ("few", r"an array of shape \(2, 3\): expected a score of each of 10 classes"),
        ("flat", "has no parameters to train"),
        ("maps", r"an array of shape \(2, 10, 6, 6\): expected"),
        ("lazy", "has lazy layers: give the sizes"),
    ],
)
def test_a_model_that_does_not_fit_is_named(tmp_path, name, message):
    (tmp_path / "models.py").write_text(textwrap.dedent(MODELS))
    with pytest.raises(ValueError, match=message):
        build(f"{tmp_path / 'models.py'}:{name}", (1, 8, 8), 10, 0)


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Flatten(), nn.Linear(7, 10)],
        [nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(32, 10)],
        [nn.Conv2d(3, 2, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 10)],
        [nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(20, 10)],
    ],
)
def test_layers_that_do_not_fit_each_other_never_reach_the_compiled_program(layers):
    assert layers_of(nn.Sequential(*layers), (1, 8, 8)) is None
