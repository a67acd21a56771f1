"""The exported class, executed as the platform does: its source alone, beside the platform's imports."""

from __future__ import annotations

import ast
import importlib
import inspect
import logging
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from honestly.aggregate import aggregate
from honestly.rules import RULES, make
from honestly.rules.rule import ColumnRule
from honestly.scaleout import server_functions, shake
from honestly.scaleout.export import CANNOT, VARIABLES
from honestly.scaleout.shake import gather

SHAPES = ((5, 4), (4,), ())


def class_source(tmp_path: Path, source: str) -> str:
    """What `start_session` sends: the text of the class, cut out of its file."""
    path = tmp_path / "server_functions.py"
    path.write_text(source)
    module = types.ModuleType("server_functions")
    module.__file__ = str(path)
    exec(compile(source, str(path), "exec"), module.__dict__)
    sys.modules["server_functions"] = module
    try:
        return inspect.getsource(module.ServerFunctions)
    finally:
        del sys.modules["server_functions"]


def platform(text: str) -> Any:
    """FEDn's `_instansiate_server_functions_code`: globals of its own module, the class in a namespace apart."""
    hooks = types.ModuleType("hooks")
    logger = logging.getLogger("fedn")

    class ServerFunctionsBase:
        pass

    def no_printing(*args: Any) -> None:
        raise RuntimeError("print needs the platform")

    hooks.__dict__.update(np=np, logger=logger, ServerFunctionsBase=ServerFunctionsBase, print=no_printing)
    namespace: dict[str, Any] = {}
    exec(compile(text, "server_functions:1", "exec"), hooks.__dict__, namespace)
    exec("server_functions = ServerFunctions()", hooks.__dict__, namespace)
    return namespace["server_functions"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    return class_source(tmp_path_factory.mktemp("scaleout"), server_functions())


@pytest.fixture
def functions(text: str) -> Any:
    return platform(text)


def previous() -> list[np.ndarray]:
    return [np.ones(shape, np.float32) for shape in SHAPES] + [np.array([3, 4], np.int64)]


def model(seed: int, step: float = 1.0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    floats = [np.asarray(1 + step * (1 + 0.2 * rng.normal(size=shape)), np.float32) for shape in SHAPES]
    return [*floats, np.array([5, 6], np.int64)]


def clients(K: int, liars: int = 0) -> dict[str, list[Any]]:
    return {f"client-{k}": [model(k, -4.0 if k >= K - liars else 1.0), {"num_examples": 10}] for k in range(K)}


def test_it_gives_what_the_engine_gives(functions: Any) -> None:
    updates = clients(9, liars=3)
    value = functions.aggregate(previous(), updates)
    expected = aggregate({name: update[0] for name, update in updates.items()}, "bayesian", reference=previous()).value
    for a, b, old in zip(value, expected, previous(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        assert a.dtype == old.dtype
        assert a.shape == old.shape
    assert np.abs(value[0] - 2.0).max() < 0.5


def test_models_of_16_bits_and_a_client_beyond_them(tmp_path: Path) -> None:
    """The mean of 65,504 and more would be infinite: the client would cost the round."""
    functions = platform(class_source(tmp_path, server_functions("mean")))
    old = [np.zeros(4, np.float16)]
    updates = {f"client-{k}": [[np.full(4, k, np.float16)], {}] for k in range(4)}
    assert functions.aggregate(old, updates)[0].tolist() == [1.5] * 4
    for dtype, value in ((np.float16, np.inf), (np.float32, 1e6), (np.float64, 1e6)):
        value = functions.aggregate(old, updates | {"client-9": [[np.full(4, value, dtype)], {}]})
        assert value[0].tolist() == [1.5] * 4


class Hostile(list[Any]):
    def __iter__(self) -> Any:
        raise ZeroDivisionError


MALFORMED: dict[str, Callable[[], Any]] = {
    "nan": lambda: [[np.full((5, 4), np.nan, np.float32), *model(1)[1:]], {}],
    "infinite": lambda: [[model(1)[0], np.full(4, np.inf, np.float32), *model(1)[2:]], {}],
    "huge": lambda: [[np.full((5, 4), 1e30, np.float32), *model(1)[1:]], {}],
    "wrong shape": lambda: [[model(1)[0].T, *model(1)[1:]], {}],
    "fewer arrays": lambda: [model(1)[:2], {}],
    "more arrays": lambda: [[*model(1), np.zeros(3)], {}],
    "text": lambda: [[np.full((5, 4), "x"), *model(1)[1:]], {}],
    "objects": lambda: [[np.full((5, 4), None), *model(1)[1:]], {}],
    "complex": lambda: [[model(1)[0] * 1j, *model(1)[1:]], {}],
    "integers for floats": lambda: [[np.ones((5, 4), np.int64), *model(1)[1:]], {}],
    "floats for integers": lambda: [[*model(1)[:-1], np.array([5.0, 6.0])], {}],
    "no model": lambda: [{"num_examples": 10}],
    "metadata only": lambda: [{"num_examples": 10}, {"num_examples": 10}],
    "two models": lambda: [model(1), model(2), {}],
    "nothing": list,
    "none": lambda: None,
    "not a list": lambda: 7,
    "ragged": lambda: [[[[1.0, 2.0], [3.0]], *model(1)[1:]], {}],
    "an object that raises": lambda: [Hostile([1]), {}],
}


@pytest.mark.parametrize("fault", MALFORMED)
def test_a_malformed_client_in_every_round_is_excluded_without_errors(
    fault: str, functions: Any, caplog: pytest.LogCaptureFixture
) -> None:
    current = previous()
    for number in range(3):
        good = {f"g{k}": [model(10 * number + k), {"num_examples": 5}] for k in range(6)}
        with caplog.at_level(logging.INFO, logger="fedn"):
            value = functions.aggregate(current, {"a": good["g0"], "bad": MALFORMED[fault](), **good})
        without = functions.aggregate(current, {"a": good["g0"], **good})
        for a, b in zip(value, without, strict=True):
            np.testing.assert_array_equal(a, b)
        assert not np.array_equal(value[0], current[0])
        assert any("client bad excluded" in message for message in caplog.messages)
        current = value


@pytest.mark.parametrize("lie", [-(2**62), 2**62])
def test_one_client_does_not_choose_a_counter_that_differs_everywhere(lie: int, tmp_path: Path) -> None:
    mean = platform(class_source(tmp_path, server_functions("mean")))
    counts = {"0 liar": lie, "a": 101, "b": 97, "c": 103, "d": 95}
    updates = {name: [[*model(0)[:-1], np.array([count, 7])], {}] for name, count in counts.items()}
    found = mean.aggregate(previous(), updates)[-1]
    assert 95 <= found[0] <= 103
    assert found[1] == 7


@pytest.mark.parametrize(
    "updates",
    [{}, None, {"a": None}, {"a": MALFORMED["nan"](), "b": MALFORMED["wrong shape"](), "c": [model(1), {}]}, 5, []],
)
def test_any_failure_returns_the_previous_model(updates: Any, functions: Any) -> None:
    old = previous()
    assert functions.aggregate(old, updates) is old


@pytest.mark.parametrize("old", [None, [], 3, [np.full(3, np.nan)], ["x"]])
def test_even_a_broken_previous_model_does_not_raise(old: Any, functions: Any) -> None:
    functions.aggregate(old, clients(5))


def test_a_bug_in_the_estimator_keeps_the_previous_model(functions: Any) -> None:
    def broken(gram: Any, names: Any) -> Any:
        raise FloatingPointError("bug")

    functions._estimate = broken
    old = previous()
    assert functions.aggregate(old, clients(5)) is old
    functions._estimate = lambda gram, names: (np.full(len(names), np.nan), None)
    assert functions.aggregate(old, clients(5)) is old


def test_one_and_two_clients(functions: Any) -> None:
    for K in (1, 2, 3):
        value = functions.aggregate(previous(), clients(K))
        assert np.abs(value[0] - 2.0).max() < 1.0


def test_only_aggregate_is_implemented_and_only_numpy_is_imported(text: str) -> None:
    tree = ast.parse(text)
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert "aggregate" in functions
    assert not functions & {"client_selection", "client_settings", "incremental_aggregate"}
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert {name.split(".")[0] for name in imported} <= {"numpy", *sys.stdlib_module_names}
    assert "honestly." not in text


def test_it_runs_where_the_package_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "server_functions.py").write_text(server_functions())
    program = (
        "import sys, numpy as np\n"
        "sys.modules['honestly'] = None\n"
        "from server_functions import ServerFunctions\n"
        "old = [np.zeros(3)]\n"
        "new = ServerFunctions().aggregate(old, {str(k): [[np.arange(3) + 0.1 * k], {}] for k in range(5)})\n"
        "assert np.allclose(new[0], np.arange(3) + 0.2, atol=0.2) and not np.allclose(new[0], 0), new\n"
    )
    found = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{program}"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize(
    ("name", "settings"),
    [("mean", {}), ("krum", {"f": 2}), ("multi_krum", {"f": 2}), ("geometric_median", {}), ("centered_clipping", {})],
)
def test_other_rules_that_weigh_clients_can_be_exported(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    rule = make(name, **settings)
    functions = platform(class_source(tmp_path, server_functions(rule)))
    updates = clients(9, liars=2)
    expected = aggregate({k: update[0] for k, update in updates.items()}, rule, reference=previous()).value
    value = functions.aggregate(previous(), updates)
    np.testing.assert_allclose(value[0], expected[0], rtol=1e-3, atol=1e-4)


def test_rules_that_cannot_stand_alone_are_refused() -> None:
    rule = make("median")
    assert isinstance(rule, ColumnRule)
    with pytest.raises(ValueError, match="coordinate"):
        server_functions(rule)
    for sizes in ("capped", "trusted"):
        with pytest.raises(ValueError, match="needs the clients' sizes"):
            server_functions(make("mean", sizes=sizes))


def test_gather_follows_names_and_leaves_annotations_behind() -> None:
    space: dict[str, Any] = {}
    exec(gather([type(make("krum", f=1))]), space)
    assert space["Krum"](f=1).f == 1
    assert "Geometry" not in space


EXPORTED = [rule for rule in RULES if not issubclass(rule, ColumnRule) and not CANNOT & rule.needs]


@pytest.mark.parametrize("entry", EXPORTED, ids=lambda entry: entry.name)
def test_every_rule_that_can_be_exported_is_one_block_of_code(entry: type[Any]) -> None:
    """Two helpers with the same name in different modules are found here, before a user exports the rule."""
    settings = {"f": 1} if "f" in {one.name for one in fields(entry)} else {}
    compile(server_functions(entry(**settings)), "server_functions.py", "exec")


SQRT, SIN, FUNCTION = "from math import sqrt as helper", "from math import sin as helper", "def helper(): return 1"


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (FUNCTION, FUNCTION, "helper is defined in second_half and in first_half: rename one"),
        (SQRT, FUNCTION, "helper is defined in second_half and elsewhere imported as math.sqrt"),
        (SQRT, SIN, "helper is math.sin and, in first_half, math.sqrt: rename one"),
        ("", "def rows(): return 2\ndef helper(): return rows()", "rows, defined in second_half, is a variable"),
    ],
)
def test_a_name_with_two_meanings_is_refused_with_both_places(
    first: str, second: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two modules, each with a class that calls `helper`; the first class inherits from the second."""
    body = "def {}(self):\n        return helper()\n"
    (tmp_path / "second_half.py").write_text(f"{second}\nclass Second:\n    {body.format('run')}")
    start = f"from second_half import Second{'' if first else ', helper'}\n{first}\n"
    (tmp_path / "first_half.py").write_text(f"{start}class First(Second):\n    {body.format('go')}")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(shake, "_is_package", lambda module: module in ("first_half", "second_half"))
    try:
        entry = importlib.import_module("first_half").First
        with pytest.raises(ValueError, match=f"one block of code, .* {message}"):
            gather([entry], reserved=VARIABLES)
    finally:
        for name in ("first_half", "second_half"):
            sys.modules.pop(name, None)
