"""Models of the user's own: what is wrong with one is said, and any other is trained as it is written."""

import textwrap

import numpy as np
import pytest
import torch
from torch import nn

from honestly.sim.experiment import Experiment
from honestly.sim.models import build
from honestly.sim.run import run
from honestly.sim.train.batched import BatchedTrainer
from honestly.sim.train.choose import choose_trainer
from honestly.sim.train.compiled.structures import layers_of
from honestly.sim.train.flat import Layout
from honestly.sim.train.pixels import Pixels
from honestly.sim.train.program import compile_program
from honestly.sim.train.schedule import plan
from honestly.sim.train.sequential import SequentialTrainer
from honestly.sim.train.sgd import SGD
from honestly.sim.train.trainer import Model

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
        ("Pair", "returned a tuple for two images: expected 10 scores each"),
        ("narrow", r"fails on images of \(channels, height, width\) = \(1, 8, 8\): mat1 and mat2"),
        ("few", r"an array of shape \(2, 3\) for two images: expected 10"),
        ("flat", "has no parameters to train"),
        ("maps", r"an array of shape \(2, 10, 6, 6\) for two images: expected"),
        ("lazy", "has lazy layers: give the sizes of all layers"),
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


def pixels(n=60):
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (n, 1, 8, 8), dtype=np.uint8)
    return Pixels.of(images, np.arange(n), rng.integers(0, 10, n), mean=(0.5,), std=(0.5,))


def images():
    store = pixels()
    return store.normalise(store.batch(torch.arange(60)))


def train(trainer, module):
    schedules = [plan([(2, np.arange(k, 60, 3))], batch=8, rng=np.random.default_rng(k)) for k in range(3)]
    return trainer.train(Model.of(module), schedules).theta


@pytest.mark.parametrize("kind", ["chosen", "batched"])
def test_a_layer_that_stands_in_several_places_is_applied_in_each(kind):
    torch.manual_seed(0)
    relu, pool = nn.ReLU(), nn.MaxPool2d(2)
    first, second = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 4, 3, padding=1)
    module = nn.Sequential(first, relu, pool, second, relu, pool, nn.Flatten(), nn.Linear(16, 10))
    store = pixels()
    if kind == "batched":
        trainer = BatchedTrainer(module, store, SGD(0.1), 8)
    else:
        trainer = choose_trainer(module, store, Experiment.of({"lr": 0.1, "batch": 8, "weight_decay": 0.0}))
    expected = train(SequentialTrainer(module, store, trainer.sgd, 8), module)
    torch.testing.assert_close(train(trainer, module), expected, rtol=1e-3, atol=1e-4)
    with torch.no_grad():
        wanted = module.eval()(images())
    torch.testing.assert_close(trainer.logits(Model.of(module), store), wanted, rtol=1e-4, atol=1e-4)


class Spare(nn.Module):
    """One layer is not used, one has no bias to train, one is frozen."""

    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(2, 2)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10))
        self.body[1].requires_grad_(False)
        self.body[3].bias.requires_grad_(False)

    def forward(self, x):
        return self.body(x)


def test_frozen_and_unused_parameters_keep_their_values():
    torch.manual_seed(0)
    module = Spare()
    layout = Layout.of_parameters(module)
    row = torch.zeros(1, layout.size)
    body = Layout.of_parameters(module.body)
    assert compile_program(module.body, body, row, row) is None  # it would drop the frozen bias
    trainer = SequentialTrainer(module, pixels(), SGD(0.1), 8)
    result, before = train(trainer, module), Model.of(module).theta
    assert layout.names == ("spare.weight", "spare.bias", "body.3.weight")
    assert torch.equal(result[:, :6], before[:6].repeat(3, 1))
    assert not torch.equal(result[:, 6:], before[6:].repeat(3, 1))
    with torch.no_grad():
        wanted = module.eval()(images())
    torch.testing.assert_close(trainer.logits(Model.of(module), pixels()), wanted)


def test_dropout_draws_the_same_numbers_again(tmp_path):
    (tmp_path / "noisy.py").write_text(
        "from torch import nn\n\n\ndef net(c, h, w, n):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(c * h * w, 20), nn.Dropout(0.5), nn.Linear(20, n))\n"
    )
    values = {"clients": 6, "epochs": 1, "rule": "mean", "model": f"{tmp_path / 'noisy.py'}:net"}
    whole = run(Experiment.of({**values, "rounds": 3}))
    torch.manual_seed(7)
    state = torch.get_rng_state()
    for rounds in (1, 3):
        resumed = run(Experiment.of({**values, "rounds": rounds}), tmp_path / "run")
    assert resumed.records == whole.records
    assert torch.equal(torch.get_rng_state(), state)  # the caller's generator is left alone
