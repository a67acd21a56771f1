"""What holds for every attack. A new attack is one line in `ATTACKS` and inherits all of this."""

import dataclasses

import numpy as np
import pytest
import torch

from honestly.engine import Pipeline
from honestly.rules.rule import Mix, Rule
from honestly.sim.attacks import ATTACKS, KNOWS, Backdoor, DataAttack, UpdateAttack, View, attacks, make, settings_of
from honestly.sim.attacks.vectors import DrawnAhead, normal

UPDATES = [name for name, attack in ATTACKS.items() if issubclass(attack, UpdateAttack)]
DATA = [name for name, attack in ATTACKS.items() if issubclass(attack, DataAttack)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Average(Rule):
    """A stand-in rule, so these tests do not depend on the rules of the package."""

    name = "average"
    summary = "mean"

    def mix(self, geometry):
        return Mix.of_weights(np.full(geometry.K, 1 / geometry.K))


def view(M, *, honest=7, d=11, seed=0, library=np.asarray, dtype=np.float32, reference=True):
    rng = np.random.default_rng(seed)
    X = rng.normal(0.5, 1.0, (honest + M, d)).astype(dtype)
    return View(
        own=library(X[honest:]),
        others=library(X[:honest]),
        reference=library(rng.normal(size=d).astype(dtype)) if reference else None,
        rng=np.random.default_rng(seed + 1),
        clients=honest + M,
        pipeline=Pipeline.of(Average()),
    )


@pytest.mark.parametrize("name", ATTACKS)
def test_a_call_with_wrong_settings_names_the_remedy(name):
    with pytest.raises(TypeError, match=f"attack '{name}' has no setting 'wrong'"):
        ATTACKS[name](wrong=1)
    with pytest.raises(TypeError, match=f"attack '{name}' (takes its settings by name|has no settings)"):
        ATTACKS[name](1)


@pytest.mark.parametrize("name", ATTACKS)
def test_settings_that_are_counts_take_whole_numbers_alone(name):
    """A fraction was cut off, or failed in the middle of a round."""
    for field in dataclasses.fields(ATTACKS[name]):
        if str(field.type).startswith("int"):
            for wrong in (2.5, True, float("nan")):
                with pytest.raises(ValueError, match=f"{field.name} must be an integer"):
                    ATTACKS[name](**{field.name: wrong})


def pictures(n=12, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 200, (n, 1, 28, 28), dtype=np.uint8), np.arange(n) % 4


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("M", [0, 1, 2, 6])
@pytest.mark.parametrize("d", [1, 11])
def test_any_number_of_attackers_and_of_coordinates(name, M, d):
    seen = view(M, d=d)
    before = seen.own.copy()
    forged = make(name).forge(seen)
    assert forged.shape == (M, d)
    assert forged.dtype == np.float32
    assert name in ("nan", "inf") or np.isfinite(forged).all()
    np.testing.assert_array_equal(seen.own, before)  # the honest updates are nobody's to change
    assert not np.shares_memory(forged, seen.own)


@pytest.mark.parametrize("name", UPDATES)
def test_same_numbers_on_numpy_and_torch(name):
    forged = make(name).forge(view(3))
    tensors = make(name).forge(view(3, library=torch.asarray))
    assert isinstance(tensors, torch.Tensor)
    assert tensors.dtype == torch.float32
    np.testing.assert_allclose(tensors.numpy(), forged, rtol=2e-3, atol=2e-4 * np.nanmax(np.abs(np.nan_to_num(forged))))


@pytest.mark.parametrize("name", UPDATES)
def test_deterministic_in_the_generator(name):
    np.testing.assert_array_equal(make(name).forge(view(3)), make(name).forge(view(3)))


@pytest.mark.parametrize("name", UPDATES)
def test_identical_is_true_only_for_identical_vectors(name):
    forged = make(name).forge(view(3))
    if ATTACKS[name].identical:
        assert (forged == forged[0]).all()


@pytest.mark.parametrize("name", UPDATES)
def test_works_without_the_others_and_without_a_reference(name):
    """An omniscient attack from which the honest updates are withheld uses those of the malicious clients."""
    for M in (1, 3):
        seen = dataclasses.replace(view(M, reference=False), others=None)
        assert make(name).forge(seen).shape == (M, 11)


@pytest.mark.parametrize("name", UPDATES)
def test_the_unit_of_the_updates_does_not_matter(name):
    """All vectors times 1000: the forged ones too (except where zero or a random model is sent)."""
    seen = view(3, dtype=np.float64)
    large = dataclasses.replace(view(3, dtype=np.float64), own=1e3 * seen.own, others=1e3 * seen.others)
    large = dataclasses.replace(large, reference=1e3 * seen.reference)
    np.testing.assert_allclose(make(name).forge(large), 1e3 * make(name).forge(seen), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", UPDATES)
def test_what_is_remembered_can_be_saved_and_read_by_the_other_library(name):
    """A run that is resumed finds NumPy arrays where the run before it left tensors."""
    attack = make(name)
    held = attack.remember(view(3), attack.forge(view(3)))
    tensors = {key: torch.asarray(np.asarray(array)) for key, array in held.items()}

    def second(memory, library=np.asarray):
        return dataclasses.replace(view(3, seed=5, library=library), memory=memory)

    straight = attack.forge(second(held))
    resumed, kept = (attack.forge(second(memory, torch.asarray)).numpy() for memory in (held, tensors))
    np.testing.assert_array_equal(resumed, kept)
    np.testing.assert_allclose(resumed, straight, rtol=2e-3, atol=2e-4 * np.nanmax(np.abs(np.nan_to_num(straight))))
    assert set(attack.remember(second(held), straight)) == set(held)


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("library", [np.asarray, torch.asarray])
def test_poisoned_data_fits_together(name, library):
    images, labels = pictures()
    attack = make(name)
    before = images.copy()
    new_images, new_labels, mask = attack.poison(
        library(images), library(labels), rng=np.random.default_rng(0), attacker=2
    )
    assert type(new_images) is type(library(images))
    assert new_images.dtype == library(images).dtype
    assert new_labels.dtype == library(labels).dtype
    assert len(new_images) == len(new_labels) == len(mask) >= len(images)
    assert bool(mask.any())
    clean = np.asarray(~mask)[: len(images)]
    np.testing.assert_array_equal(np.asarray(new_labels)[: len(images)][clean], labels[clean])
    np.testing.assert_array_equal(images, before)


@pytest.mark.parametrize("name", DATA)
def test_data_without_a_victim_or_without_anything(name):
    attack = make(name)
    for images, labels in (pictures(), (np.zeros((0, 1, 28, 28), np.uint8), np.zeros(0, np.int64))):
        others = labels != 0
        new_images, new_labels, mask = attack.poison(images[others], labels[others], rng=np.random.default_rng(0))
        assert len(new_images) == len(new_labels) == len(mask)
        if isinstance(attack, Backdoor):
            assert not mask.any()


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("epochs", [1, 2, 5, 10])
def test_phases_spend_exactly_the_epochs(name, epochs):
    phases = make(name).phases(epochs)
    assert sum(phase.epochs for phase in phases) == epochs
    assert all(phase.epochs > 0 for phase in phases)
    assert phases[-1].select == "all"


@pytest.mark.parametrize("attack", attacks(), ids=lambda attack: attack.name)
def test_every_attack_describes_itself(attack):
    assert attack.name in ATTACKS
    assert attack.summary
    assert attack.knows in KNOWS
    assert attack.training >= 0.0
    assert attack.__doc__
    assert "nows" in attack.__doc__ or "knows" in attack.__doc__, "the docstring states what it knows"
    assert ">>>" in attack.__doc__
    for setting in settings_of(attack):
        if setting not in ("source", "target"):
            assert f"{setting}:" in attack.__doc__, f"{setting} is not described"
    with pytest.raises(dataclasses.FrozenInstanceError):
        make(attack.name).name = "x"


@pytest.mark.parametrize("attack", attacks(), ids=lambda attack: attack.name)
def test_settings_that_are_not_numbers_are_refused(attack):
    for setting, default in settings_of(attack).items():
        if isinstance(default, float):
            for bad in (np.inf, np.nan):
                with pytest.raises(ValueError, match=setting):
                    make(attack.name, **{setting: bad})


def test_a_misspelt_name_or_setting_is_explained():
    with pytest.raises(ValueError, match="did you mean min_max"):
        make("minmax")
    with pytest.raises(
        ValueError, match=r"attack 'sign_flip' has no setting 'gama': did you mean gamma\? Settings: gamma"
    ):
        make("sign_flip", gama=2)
    with pytest.raises(ValueError, match="Allowed: none"):
        make("zzzzzz")


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("sign_flip", "gamma", 0.0),
        ("random", "gamma", -1.0),
        ("random_colluding", "gamma", 0.0),
        ("label_flip", "shift", 10),
        ("label_flip", "classes", 1),
        ("backdoor", "target", 0),
        ("backdoor", "source", -1),
        ("ipm", "epsilon", 0.0),
        ("min_max", "direction", "up"),
        ("min_sum", "direction", "up"),
        ("fang_krum", "epsilon", -1.0),
        ("fang_trimmed_mean", "b", 1.0),
        ("mimic", "target", -1),
        ("mpaf", "scale", 0.0),
        ("rop", "location", -0.1),
        ("gaussian", "scale", 0.0),
        ("nan", "coordinates", 0),
        ("scaling", "gamma", 0.0),
        ("free_rider", "noise", -1.0),
        ("near_duplicates", "jitter", -1.0),
        ("near_duplicates", "towards", "up"),
        ("model_replacement", "scale", 0.0),
        ("edge_case", "share", 1.5),
        ("adaptive", "columns", 0),
        ("poisoned_fl", "factor", 0.0),
        ("poisoned_fl", "beta", 1.5),
        ("poisoned_fl", "window", 0),
        ("poisoned_fl", "seed", -1),
        ("xfed", "z", -1.0),
        ("xfed", "window", 0),
        ("neurotoxin", "share", 1.0),
        ("critical_layers", "strength", 0.0),
        ("critical_layers", "tau", 1.5),
        ("a3fl", "side", 0),
        ("a3fl", "rate", 0.0),
        ("a3fl", "balance", -1.0),
        ("a3fl", "unlearn", -1),
        ("iba", "epsilon", 1.5),
        ("iba", "steps", -1),
        ("iba", "seed", -1),
        ("chameleon", "epochs", -1),
        ("chameleon", "rate", 0.0),
        ("chameleon", "temperature", 0.0),
        ("chameleon", "facilitate", 0.0),
        ("three_d_fed", "alpha", 1.0),
        ("three_d_fed", "decoys", -1),
        ("three_d_fed", "decoy", 0.0),
        ("dark_fed", "shadow", 1),
        ("dark_fed", "share", 1.5),
        ("dark_fed", "magnitude", -1.0),
        ("dark_fed", "direction", -1.0),
        ("dark_fed", "scale", 0.0),
        ("hybrid_sparse", "share", 0.0),
        ("hybrid_sparse", "aggressive", -1.0),
        ("sensitivity_curve", "towards", "up"),
        ("sensitivity_curve", "points", 2),
    ],
)
def test_settings_out_of_bounds_are_named(name, setting, value):
    with pytest.raises(ValueError, match=rf"{setting} must (not )?be .*, got '?{value}"):
        make(name, **{setting: value})


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrawsTwice(UpdateAttack):
    """Inherits that its noise is drawn ahead, and draws more than that."""

    name = "draws_twice"
    summary = "two draws"
    noise_ahead = True
    first: str = "normal"

    def craft(self, view):
        other = view.rng.random() if self.first == "random" else 0.0
        return normal(view, view.own.shape) + 10 * normal(view, view.own.shape) + other


@pytest.mark.parametrize("first", ["normal", "random"])
def test_noise_that_was_drawn_ahead_is_what_the_generator_gives(first):
    plain, attack = view(3), DrawsTwice(first=first)
    noise = DrawnAhead.of(np.random.default_rng(1), plain.own.shape)
    forged = attack.forge(plain)
    np.testing.assert_array_equal(attack.forge(dataclasses.replace(view(3), noise=noise)), forged)
