"""Names of version 0.1 that users' own rules and attacks import still work, and say what replaces them."""

import importlib
import sys

import pytest

import honestly as hn


@pytest.mark.parametrize(("old", "new"), [
    ("honestly.rules.base", "honestly.rules.rule"),
    ("honestly.sim.attacks.base", "honestly.sim.attacks.attack"),
])  # fmt: skip
def test_old_module_gives_the_same_objects(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=f"{old} is {new} now"):
        module = importlib.import_module(old)
    successor = importlib.import_module(new)
    assert successor.__all__
    assert all(getattr(module, name) is getattr(successor, name) for name in successor.__all__)


def test_the_old_name_of_the_list_of_rules_says_the_new_one() -> None:
    with pytest.warns(DeprecationWarning, match=r"hn\.rules\(\) is hn\.list_rules\(\) now"):
        assert hn.rules() == hn.list_rules()
