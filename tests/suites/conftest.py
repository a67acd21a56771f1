"""A tiny suite in a folder of its own, with a module's RULES beside it."""

import pytest

from honestly.studies.suites.judge import judge
from honestly.studies.suites.make import make

from .test_suites import TINY


@pytest.fixture(scope="module")
def home(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    (folder / "suites").mkdir()
    make(TINY, out=folder / "suites" / "small-1.npz")
    (folder / "rules.py").write_text(request.module.RULES)
    return folder


def standing(home, name, **more):
    """How a rule of the module's RULES stands."""
    return judge(TINY, [f"{home / 'rules.py'}:{name}"], folder=home, **more)[0]
