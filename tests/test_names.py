"""One name for one meaning: a search for a name finds one definition."""

import ast
import importlib
import re
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


def test_documented_arguments_exist() -> None:
    """A renamed argument is renamed in its docstring."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    names = [(node.name, _documented(node), _accepted(node, classes)) for node in (*classes.values(), *functions)]
    assert sum(bool(documented) for _, documented, _ in names) > 100, "the docstrings were not found"
    assert [(name, documented - accepted) for name, documented, accepted in names if documented - accepted] == []


def _documented(node: ast.ClassDef | ast.FunctionDef) -> set[str]:
    """The names listed under `Args:`."""
    section = re.search(r"^Args:\n((?: {4}.*\n|\n)*)", (ast.get_docstring(node) or "") + "\n", re.MULTILINE)
    entries = re.findall(r"^ {4}(\w[\w, ]*):", section[1], re.MULTILINE) if section else []
    return {name for entry in entries for name in entry.split(", ")}


def _accepted(node: ast.ClassDef | ast.FunctionDef, classes: dict[str, ast.ClassDef]) -> set[str]:
    """The parameters of a function; the fields of a class and the parameters of `__init__`, inherited ones too."""
    if isinstance(node, ast.FunctionDef):
        a = node.args
        return {one.arg for one in (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg) if one is not None}
    bases = [ast.unparse(base) for base in node.bases]
    inherited = [classes[base] for base in bases if base in classes and base != node.name]
    inits = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    fields = {ast.unparse(one.target) for one in node.body if isinstance(one, ast.AnnAssign)}
    return fields.union(*(_accepted(one, classes) for one in (*inherited, *inits)))
