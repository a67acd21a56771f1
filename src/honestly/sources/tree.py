"""Flatten one update (an array, or dicts, lists and tuples of arrays, nested in any way) and rebuild it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, ValuesView
from typing import Any

from honestly.arrays import ArraySpec, device_name, is_array, is_scalar, spec

# A hostile client may nest lists a million deep, or put one list ten times into the next, and so on: a file of a
# kilobyte then holds more arrays than anybody can count. No model does either. The second number is that of the letters
# in the paths of all arrays and containers.
DEEPEST, MOST_LETTERS = 32, 1 << 25
_BRANCH = object()


class UnusableError(Exception):
    """One client's update cannot be read; the message is the reason."""


def flatten(update: Any) -> dict[str, Any]:
    """Path -> array of one update, in the order of its container; the path of a lone array is ''."""
    leaves: dict[str, Any] = {}
    letters = 0
    for path, leaf in _walk(update, "", 0):
        letters += 1 + len(path)
        if letters > MOST_LETTERS:
            raise UnusableError("holds more arrays, or longer names, than any model does")
        if leaf is _BRANCH:
            continue
        if path in leaves:  # {"a.b": x, "a": {"b": y}}, {1: x, "1": y}
            raise UnusableError(f"holds two arrays that are both called {path[:100]!r}")
        leaves[path] = leaf
    return leaves


def _walk(node: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Every array with its path, and every container as `_BRANCH`."""
    if is_array(node) or is_scalar(node):
        yield path, node
    elif depth > DEEPEST:
        raise UnusableError(f"nests containers more than {DEEPEST} deep")
    elif isinstance(node, Mapping):
        yield path, _BRANCH
        for key, child in node.items():
            yield from _walk(child, f"{path}.{key}" if path else str(key), depth + 1)
    elif isinstance(node, list | tuple):
        yield path, _BRANCH
        for position, child in enumerate(node):
            yield from _walk(child, f"{path}[{position}]", depth + 1)
    else:
        where = f"entry {path!r} is" if path else "is"
        raise UnusableError(
            f"{where} {_a(type(node).__name__)}, not an array or a container of arrays{_remedy(type(node))}"
        )


def _remedy(kind: type) -> str:
    """What to pass instead of an object of that class, where that is known."""
    if hasattr(kind, "state_dict"):  # a module of PyTorch
        return ": pass its state_dict()"
    return ": pass a list of its items" if issubclass(kind, Iterator | ValuesView) else ""  # model.parameters()


def rebuild(template: Any, leaf_of: Callable[[str], Any]) -> Any:
    """A container like `template` in which each array is replaced by `leaf_of(path)`."""
    return _rebuild(template, "", leaf_of)


def _rebuild(node: Any, path: str, leaf_of: Callable[[str], Any]) -> Any:
    if is_array(node) or is_scalar(node):
        return leaf_of(path)
    if isinstance(node, Mapping):
        items = {key: _rebuild(child, f"{path}.{key}" if path else str(key), leaf_of) for key, child in node.items()}
        make: Any = type(node)
        try:
            return make(items)
        except TypeError:
            return items
    children = [_rebuild(child, f"{path}[{i}]", leaf_of) for i, child in enumerate(node)]
    if isinstance(node, tuple) and hasattr(node, "_fields"):  # a named tuple takes its fields one by one
        return type(node)(*children)
    return type(node)(children)


def form(node: Any) -> Any:
    """What a container is made of, beyond its tensors' names and shapes: types, keys and their order.

    Example:
        >>> form({"a": {"b": 1.0}}) == form({"a.b": 1.0}), form([1.0, 2.0]) == form([3.0, 4.0])
        (False, True)
    """
    if isinstance(node, Mapping):
        return type(node), tuple(node), tuple([form(child) for child in node.values()])
    return (type(node), tuple([form(child) for child in node])) if isinstance(node, list | tuple) else type(node)


def signature(leaves: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Path -> (shape, kind): two clients with equal signatures can be averaged. Raises `UnusableError`."""
    return {path: what.layout for path, what in specs(leaves).items()}


def specs(leaves: Mapping[str, Any]) -> dict[str, ArraySpec]:
    """Path -> what the array is. Raises `UnusableError` if one of them cannot be averaged."""
    if not leaves:
        raise UnusableError("holds no arrays")
    result: dict[str, ArraySpec] = {}
    for path, leaf in leaves.items():
        what = spec(leaf)
        if what.kind not in ("float", "integer", "bool"):
            raise UnusableError(
                f"{tensor_label(path)} has dtype {what.dtype}, expected float16, bfloat16, float32 or float64"
            )
        if device_name(leaf) == "meta":
            raise UnusableError(f"{tensor_label(path)} is on device 'meta', which holds no values")
        result[path] = what
    return result


def difference(
    actual: Mapping[str, tuple[tuple[int, ...], str]], expected: Mapping[str, tuple[tuple[int, ...], str]]
) -> str:
    """The first way in which a client's layout differs from the expected one, as a sentence."""
    for path, (shape, kind) in expected.items():
        if path not in actual:
            return f"{tensor_label(path)} is missing"
        if actual[path][1] != kind:
            return f"{tensor_label(path)} holds {actual[path][1]} values, expected {kind}"
        if actual[path][0] != shape:
            return f"{tensor_label(path)} has shape {actual[path][0]}, expected {shape}"
    extra = next((path for path in actual if path not in expected), None)
    return (
        f"{tensor_label(extra)} is not part of the model" if extra is not None else "its tensors come in another order"
    )


def tensor_label(path: str) -> str:
    """A tensor's name for a message; names are untrusted, so they are cut and escaped."""
    return f"tensor {path[:100]!r}" if path else "its array"


def unreadable(error: Exception) -> str:
    """The reason for excluding a client whose object raised `error`."""
    return f"cannot be read ({type(error).__name__}: {str(error)[:200]})"


def _a(word: str) -> str:
    return f"an {word}" if word[:1].lower() in "aeiou" else f"a {word}"
