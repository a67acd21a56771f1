"""Explain mistakes in settings so that a person can fix them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from honestly.blame import Culprit, culprit
from honestly.hints import did_you_mean

#: What to do about pydantic's mistakes, in our words.
REMEDIES = {
    "int_parsing": "give a whole number",
    "int_type": "give a whole number",
    "int_from_float": "give a whole number",
    "float_parsing": "give a number",
    "float_type": "give a number",
    "bool_parsing": "give true or false",
    "bool_type": "give true or false",
    "list_type": "give a list",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
}


def explain(error: ValidationError, values: dict[str, Any], model: type[BaseModel]) -> str:
    """One line for each mistake: `key = value: what is wrong and what is allowed`.

    pydantic takes every ValueError of a validator for the user's mistake; one that is a bug of ours is raised again.
    """
    for e in error.errors():
        inner = e.get("ctx", {}).get("error")
        if isinstance(inner, Exception) and culprit(inner)[0] is Culprit.BUG:
            raise inner
    return "\n".join(dict.fromkeys(_line(dict(e), values, model) for e in error.errors()))


def _line(e: dict[str, Any], values: dict[str, Any], model: type[BaseModel]) -> str:
    where = ".".join(str(part) for part in e["loc"])
    if e["type"] == "extra_forbidden":
        allowed = list(model.model_fields)
        hint = did_you_mean(where, allowed)
        return f"{where} = {e['input']!r}: unknown key, {hint}Allowed keys: {', '.join(allowed)}"
    if e["type"] == "missing":
        return f"{where}: missing, it has no default"
    message = str(e.get("ctx", {}).get("error", e["msg"])) if e["type"] == "value_error" else e["msg"]
    if not where:  # a check of several keys together names them itself
        return message
    if e["type"] == "literal_error":
        expected = str(e["ctx"]["expected"]).replace(" or ", ", ").replace("'", "")
        hint = did_you_mean(e["input"], expected.split(", "))
        return f"{where} = {e['input']!r}: {hint}Allowed: {expected}"
    if e["type"] in REMEDIES:
        bounds = {name: str(bound).removesuffix(".0") for name, bound in e.get("ctx", {}).items()}
        message = REMEDIES[e["type"]].format(**bounds)
    elif e["type"] != "value_error":  # pydantic's own sentences
        message = message[0].lower() + message[1:]
    return f"{where} = {e['input']!r}: {message}"
