"""Experiments keep their ids: results that people have are found again.

An id is the hash of an experiment's canonical form. Whoever gives a rule or an attack of these studies a new setting
changes them: leave the setting out of the canonical form at its default (as `Experiment._written` does for `warm_up`),
or say in CHANGELOG.md that earlier results count as another experiment's, and renew the sums.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from honestly.sim.settings import experiment, presets
from honestly.studies.study import Study, shipped_studies, text_of

ROOT = Path(__file__).parents[2]
STUDIES = {
    "paper-ablation": "e5145000c96a2894",
    "paper-figure1": "347e2a532d40b48d",
    "paper-tables": "a46ad27b210aaf3f",
    "paper-text-ablation": "5b4a94b2f2578ad3",  # these three were paper-ablation, -figure1 and -tables in version 0.1:
    "paper-text-figure1": "d4ac28f64d8c6efb",  # runs of that time (results/stores) count for the text's reading
    "paper-text-tables": "21d6f91e1026b172",
    "quick": "ffa599fe924ac490",
    "results/cifar-200.toml": "d9630cc5a557c534",
    "results/cifar.toml": "22b9a289716886ab",
    "results/equal.toml": "1bc9fb1786f79486",
    "results/random.toml": "a400672f4d5c38cc",
}
PRESETS = {
    "paper/cifar10-config1.toml": "191a7e0acb83c2ad",
    "paper/cifar10-config2.toml": "a1186ef38d774ad6",
    "paper/cifar10-config3.toml": "d0a2dd6762a822fe",
    "paper/figure1.toml": "ac33adce0e302cbc",
    "paper/fmnist-config1.toml": "ffed3ea7c1591b86",
    "paper/fmnist-config2.toml": "55122e7004da4951",
    "paper/fmnist-config3.toml": "9b752644d8c6bfb5",
    "paper/mnist-config1.toml": "766d38826212af2c",
    "paper/mnist-config2.toml": "e0b6e5ee1652777d",
    "paper/mnist-config3.toml": "ce060b5fb9daa00d",
}


@pytest.mark.parametrize("name", STUDIES)
def test_studies(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8") if name.startswith("results/") else text_of(name)
    ids = [entry.id for entry in Study.parse(text).entries()]
    assert sha256(" ".join(ids).encode()).hexdigest().startswith(STUDIES[name])


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name: str) -> None:
    assert experiment([name]).id.startswith(PRESETS[name])


def test_all_presets_exist() -> None:
    assert set(PRESETS) == set(presets())
    assert set(shipped_studies()) == {name for name in STUDIES if not name.startswith("results/")}
