"""Code of the user's own, by name: `package.module:name`, or `file.py:name` for a file that is not installed."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

#: Names of the modules that hold code of the user's own: errors in there are the user's to mend.
LOADED: set[str] = set()


def is_own(name: str) -> bool:
    """Whether this names code rather than something that comes with the package.

    >>> is_own("lenet5"), is_own("package.module:net"), is_own("task.py:net")
    (False, True, True)
    """
    return ":" in name


def import_name(what: str, name: str) -> Any:
    """What a name such as ``package.module:factory`` or ``folder/file.py:factory`` stands for.

    Args:
        what: how messages call it, "model" or "rule".
        name: the module or file, a colon, and the name of a callable in it.

    Naming code runs it: take experiments only from people whose code you would run.

    >>> import_name("model", "collections:OrderedDict").__name__
    'OrderedDict'
    >>> import_name("model", "nowhere.py:net")
    Traceback (most recent call last):
    ValueError: model 'nowhere.py:net' cannot be loaded: there is no file nowhere.py
    """
    place, _, attribute = name.rpartition(":")
    try:
        module = _file(place) if place.endswith(".py") else importlib.import_module(place)
        if not module.__name__.startswith("honestly."):
            LOADED.add(module.__name__)
        if not hasattr(module, attribute):
            raise ImportError(f"{place} has no {attribute!r}")
        thing: Any = getattr(module, attribute)
    except (ImportError, AttributeError, SyntaxError, ValueError) as error:
        raise ValueError(f"{what} '{name}' cannot be loaded: {error}") from error
    except (Exception, SystemExit) as error:  # whatever the user's own file does when it is run
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}, line {last.lineno}"
        raise ValueError(f"{what} '{name}' cannot be loaded: {type(error).__name__}: {error} ({where})") from error
    if not callable(thing):
        raise ValueError(f"{what} '{name}' is a value of type {type(thing).__name__}: it must be a class or a function")
    return thing


def check_arguments(what: str, name: str, function: Callable[..., Any], *arguments: str) -> None:
    """Raise ValueError unless a function of the user's own can be called with arguments of these names, in order.

    >>> check_arguments("dataset", "task.py:data", lambda folder: folder)
    Traceback (most recent call last):
    ValueError: dataset 'task.py:data' is called with (), which it does not take: missing a required argument: 'folder'
    """
    try:
        expected = inspect.signature(function)
    except ValueError:  # a builtin may have none
        return
    try:
        expected.bind(*arguments)
    except TypeError as error:
        names = ", ".join(arguments)
        raise ValueError(f"{what} '{name}' is called with ({names}), which it does not take: {error}") from None


def _file(path: str) -> ModuleType:
    """The module in that file, loaded once in a process; its name is the same in every process that resumes a run."""
    import hashlib

    place = Path(path).resolve()
    name = f"honestly_own_{place.stem}_{hashlib.sha256(str(place).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, place)
    if not place.is_file() or spec is None or spec.loader is None:
        raise ImportError(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
