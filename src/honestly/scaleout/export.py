"""The text of `server_functions.py`: the platform's class with a rule of the package in it, NumPy only."""

from __future__ import annotations

import ast
import inspect
import re

import numpy as np

from honestly._version import __version__
from honestly.rules import RULE_CATALOG
from honestly.rules.rule import ColumnRule, GramGeometry, Rule
from honestly.scaleout import template
from honestly.scaleout.shake import gather, method

HEADER = '''"""Robust averaging on Scaleout's server; `honestly export scaleout` wrote it (version {version}).

SPDX-License-Identifier: Apache-2.0

Rule: {rule}. Needs Python 3.10 or newer and NumPy, nothing else.

    from server_functions import ServerFunctions
    client.start_session(..., server_functions=ServerFunctions)

A client whose model is malformed is excluded, the others are weighed by the rule, and any failure keeps the previous
model: after an exception the platform would use plain averaging in every later round. The log names excluded clients.
"""

import numpy as np

try:
    from scaleoututil.serverfunctions.serverfunctionsbase import ServerFunctionsBase
except ImportError:
    try:
        from fedn.network.combiner.hooks.serverfunctionsbase import ServerFunctionsBase
    except ImportError:
        ServerFunctionsBase = object

'''
#: Variables of the method that the estimator becomes.
VARIABLES = ("self", "grams", "sizes", "clients", "known", "found", "rows", "np")
#: The exported file has no C sources: NumPy decides.
COMPILED = "honestly.rules.bayesian.compiled"
INSTEAD = {
    (COMPILED, "estimator_for"): "def estimator_for(geometry):\n    return estimate",
    (COMPILED, "foresee_weights"): "def foresee_weights(layers, d, tolerated):\n    return None",
}
#: Needs of rules that this platform cannot meet.
CANNOT = frozenset({"root", "memory", "randomness", "sizes", "trusted client", "signs", "updates", "buffers"})


def server_functions(rule: Rule | str = "bayesian") -> str:
    """Source of a module with the class `ServerFunctions`, whose estimator is the source of the rule itself.

    Args:
        rule: a rule, or text such as "krum:f=2". It has to weigh clients, not sort coordinates.

    Returns:
        Python source. The class alone, as `inspect.getsource` cuts it out, is all that the platform needs.

    Raises:
        ValueError: the rule needs something that the platform does not have.

    Example:
        >>> "class ServerFunctions(ServerFunctionsBase)" in server_functions("bayesian")
        True
    """
    rule = RULE_CATALOG.build(rule, own=False) if isinstance(rule, str) else rule
    if isinstance(rule, ColumnRule):
        raise ValueError(
            f"{rule!r} works coordinate by coordinate; export a rule that weighs clients, such as bayesian"
        )
    if rule.root is not None or CANNOT & rule.needs:
        raise ValueError(
            f"{rule!r} needs {', '.join(sorted(CANNOT & rule.needs))}, which the exported file cannot have"
        )
    try:  # a rule that fails on the platform would keep the previous model in every round
        rule.mix(GramGeometry(np.eye(max(3, rule.minimum())), has_reference=True))
    except ValueError as error:
        raise ValueError(f"the exported file has only the clients' models: {error}") from error
    estimator = gather([type(rule), GramGeometry], reserved=VARIABLES, instead=INSTEAD)
    estimator += (
        "\nknown = GramGeometry.of_layers(grams, tuple(clients), has_reference=True, layer_sizes=sizes)"
        f"\nfound = {rule!r}.mix(known)\n"
        "rows = np.repeat(found.matrix, len(grams), axis=0) if found.by_layer is None else found.by_layer\n"
        "return rows, found.honesty\n"
    )
    doc = "Weights and honesty of the clients from their Gram matrices: the package's own source of the rule."
    text = _template().replace(_placeholder(), method("_estimate", "self, grams, sizes, clients", doc, estimator))
    source = HEADER.format(version=__version__, rule=repr(rule)) + "\n" + text
    _check(source)
    return source


def _template() -> str:
    """The class without annotations: the platform has no `Any`."""
    text = inspect.getsource(template.ServerFunctions)
    return re.sub(r" -> (Any|None)(?=:\n)", "", re.sub(r": (Any|str)(?=[,)])", "", text))


def _placeholder() -> str:
    """The stub of `_estimate` as it stands in the template: its last method."""
    text = _template()
    return text[text.index("    def _estimate(") :]


def _check(source: str) -> None:
    """The platform decides by the names of all functions what is implemented: only `aggregate` may be found."""
    names = {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)}
    reserved = names & {
        "client_selection",
        "client_settings",
        "incremental_aggregate",
        "get_incremental_aggregate_model",
    }
    if reserved or "aggregate" not in names:
        raise ValueError(f"the rule's source defines {sorted(reserved)}, which the platform would call as its own")
