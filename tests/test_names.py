"""One name for one meaning: a search for a name finds one definition."""

import ast
import importlib
from collections import defaultdict
from pathlib import Path

import honestly as hn

PACKAGE = Path(hn.__file__).parent

#: The same thing in several frameworks, each of which names its class in a configuration.
SHARED = {"RobustAggregator"}


def test_class_names_are_unique() -> None:
    places = defaultdict[str, list[str]](list)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    assert len(places) > 300, "the package was not found"
    assert {name: found for name, found in places.items() if len(found) > 1 and name not in SHARED} == {}


def test_the_function_hides_no_other_name_of_its_module() -> None:
    import honestly.aggregate as by_import

    assert by_import is hn.aggregate
    module = importlib.import_module("honestly.aggregate")
    assert module.aggregate is hn.aggregate
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert defined == ["aggregate"]
