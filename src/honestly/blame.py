"""Who is to blame for an error: the user, code of the user's own, or honestly itself."""

from __future__ import annotations

import dis
import re
import sys
from enum import Enum
from pathlib import Path
from types import TracebackType

from honestly.own import LOADED


class Culprit(Enum):
    """Who has to change something."""

    USER = "the user"
    OWN_CODE = "code of the user's own"
    BUG = "honestly"


def culprit(error: BaseException) -> tuple[Culprit, str]:
    """Who is to blame, and where it happened: `file.py, line 7`.

    An error that the package raises by a `raise` statement is for the user. The same kind of error from Python or a
    library, such as NumPy's "could not be broadcast", is a bug, unless code of the user's own is nearer to it.
    """
    remote = _remote(error)
    if remote is not None:
        return remote
    last = error.__traceback__
    ours: TracebackType | None = None
    while last is not None:  # from the outermost call to the innermost
        if _is_ours(last) or _module(last) in LOADED:
            ours = last
        if last.tb_next is None:
            break
        last = last.tb_next
    if ours is None:
        return Culprit.BUG, "unknown place"
    where = f"{Path(ours.tb_frame.f_code.co_filename).name}, line {ours.tb_lineno}"
    if not _is_ours(ours):
        return Culprit.OWN_CODE, where
    if type(error).__module__.partition(".")[0] == "honestly":  # a class of errors of our own
        return Culprit.USER, where
    return (Culprit.USER if ours is last and _raises(ours) else Culprit.BUG), where


def _module(entry: TracebackType) -> str:
    return str(entry.tb_frame.f_globals.get("__name__", ""))


def _is_ours(entry: TracebackType) -> bool:
    return _module(entry).partition(".")[0] == "honestly"


def _raises(entry: TracebackType) -> bool:
    """Whether the instruction that failed is a `raise`, and not a call or an operation."""
    code = entry.tb_frame.f_code.co_code
    return dis.opname[code[entry.tb_lasti]] == "RAISE_VARARGS"


def _remote(error: BaseException) -> tuple[Culprit, str] | None:
    """The same for an error from a worker process, of which only the text of its traceback has come."""
    if type(error.__cause__).__name__ != "_RemoteTraceback":
        return None
    entries = re.findall(r'^  File "(.*?)", line (\d+), in .*\n    (.*)$', str(error.__cause__), re.M)
    if not entries:
        return Culprit.BUG, "a worker process"
    own = {str(getattr(sys.modules.get(name), "__file__", "")) for name in LOADED}
    for file, line, _ in reversed(entries):
        if file in own:
            return Culprit.OWN_CODE, f"{Path(file).name}, line {line}"
        if "honestly" in Path(file).parts:
            break
    file, line, text = entries[-1]
    ours = "honestly" in Path(file).parts and text.startswith("raise ")
    return (Culprit.USER if ours else Culprit.BUG), f"{Path(file).name}, line {line}"
