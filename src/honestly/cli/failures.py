"""How a command ends: one sentence instead of a traceback for a foreseeable mistake, and the right exit status."""

from __future__ import annotations

import argparse
import io
import os
import sys
import traceback
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from honestly._version import __version__
from honestly.result import AggregationError

DONE, FAILED, USAGE, OUT_OF_TIME, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 75, 130, 141

OUT_OF_MEMORY = "out of memory: use fewer clients, a smaller batch or a smaller model; finished rounds are saved"


def ending(chosen: argparse.Namespace) -> int:
    """Run the chosen sub-command; the exit status.

    Errors that our code raises for the user end in one sentence. All others are bugs and keep their traceback.
    """
    command = f"honestly {chosen.command}"
    try:
        status = int(chosen.run(chosen))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        _forget_standard_output()
        return BROKEN_PIPE  # end silently, as a program that is killed by the signal
    except SystemExit as stopped:
        if isinstance(stopped.__context__, BrokenPipeError):  # rich ends the program itself, with status 1
            return BROKEN_PIPE
        raise
    except (Exception, KeyboardInterrupt) as error:
        explained = explain(error, chosen)
        if explained is None or debugging(chosen):
            traceback.print_exception(error)
        message, status = (bug(error), FAILED) if explained is None else explained
        return complain(command, message, status)


def explain(error: BaseException, chosen: argparse.Namespace) -> tuple[str, int] | None:
    """The message and exit status for an error; None if it is a bug."""
    from honestly.blame import Culprit, culprit

    match error:
        case KeyboardInterrupt():
            return str(error) or "interrupted", INTERRUPTED
        case ModuleNotFoundError():
            remedy = _remedy(error.name or "", getattr(chosen, "extra", None))
            return None if remedy is None else (remedy, FAILED)
        case AggregationError():
            return str(error), FAILED
        case OSError():
            # only the system's errors may be about standard output: asking writes an empty line to it
            full = error.strerror is not None and error.filename is None and not _can_print()
            return _describe(error, "standard output" if full else getattr(chosen, "out", None)), FAILED
        case MemoryError():
            return OUT_OF_MEMORY, FAILED
        case RuntimeError() if "out of memory" in str(error).lower() or "can't allocate memory" in str(error).lower():
            return OUT_OF_MEMORY, FAILED
        case _:
            who, where = culprit(error)
    if who is Culprit.OWN_CODE:
        hint = "HONESTLY_DEBUG=1 or --debug shows the traceback"
        return f"your code failed, {where}: {type(error).__name__}: {error}\n{hint}", FAILED
    if who is Culprit.USER and isinstance(error, ValueError):
        return str(error), USAGE
    return None


def debugging(chosen: argparse.Namespace) -> bool:
    """Whether tracebacks are wanted: `--debug`, or HONESTLY_DEBUG set to anything but 0."""
    return getattr(chosen, "debug", False) or os.environ.get("HONESTLY_DEBUG", "0") not in ("", "0")


def bug(error: BaseException) -> str:
    """The text below the traceback of an unexpected error."""
    return (
        f"this is a bug in honestly {__version__}: {type(error).__name__}: {error}\n"
        "please report it under Issues on the repository's page, with the lines above, the command, and what "
        "`honestly doctor` prints"
    )


def complain(command: str, message: str, status: int) -> int:
    """Print the message, each line after the command's name; the status."""
    from honestly.show.aggregate_page import shown

    for line in message.splitlines():
        print(f"{command}: {shown(line)}", file=sys.stderr)
    return status


def _remedy(module: str, extra: str | None) -> str | None:
    """The extra that installs a missing module: the one of the command, else one that lists it."""
    from honestly.cli.requirements import pip_line, requirements

    name = module.partition(".")[0]
    name = "jinja2" if name == "markupsafe" else name  # which jinja2 brings
    extras = [r.extra for r in requirements() if r.name.lower().replace("-", "_") == name and r.extra]
    if not extras:
        return None
    return f"{name} is not installed: {pip_line(extra if extra in extras else extras[0])}"


def _describe(error: OSError, out: object) -> str:
    """What the system says, with the file that it is about (where it names none: what is written), without `[Errno 2]`.

    If the disk is full, the error has no file name.
    """
    if error.strerror is None:
        return str(error)
    where = out if error.filename is None else error.filename
    return error.strerror if where is None else f"{where}: {error.strerror}"


@contextmanager
def escape_what_cannot_be_printed() -> Generator[None]:
    """While the command runs, print characters that the terminal cannot encode as their codes.

    If standard output or error is closed, discard what is printed.
    """
    with ExitStack() as opened:
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:
                nowhere = opened.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
                opened.callback(setattr, sys, name, None)
                setattr(sys, name, nowhere)
        yield from _escaping()


def _escaping() -> Generator[None]:
    streams = [s for s in (sys.stdout, sys.stderr) if isinstance(s, io.TextIOWrapper)]
    before = [s.errors for s in streams]
    for stream in streams:
        stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        for stream, errors in zip(streams, before, strict=True):
            stream.reconfigure(errors=errors)


def _can_print() -> bool:
    """Whether standard output takes an empty line; if not, its buffer is discarded."""
    try:
        print(flush=True)
    except OSError:
        _forget_standard_output()
        return False
    return True


def _forget_standard_output() -> None:
    """Discard the rest of the buffer, so Python does not report an error at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, sys.stdout.fileno())
    except (OSError, ValueError):  # a standard output without a file, as in a test
        return
    finally:
        os.close(nowhere)
