"""The output of `honestly aggregate`: its target, cleaning up after an interruption, and progress."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any


class Target:
    """The path that the engine writes: OUT, or a temporary path if OUT may appear only if all clients were used."""

    def __init__(self, out: Path, exclusions: str) -> None:
        from honestly.sources.checkpoints.replace import Draft

        self._final = self.out = out
        self._draft = Draft(out, folder=False) if exclusions == "fail" else None
        if self._draft is not None:  # what is left of a run that is killed has its name, and goes with it
            self.out = out.with_name(f"{self._draft.path.name}.new{out.suffix}")

    def keep(self) -> None:
        """Keep the result."""
        from honestly.sources.checkpoints.replace import replace_folder

        if self.out == self._final:
            return
        if self.out.is_dir():
            replace_folder(self.out, self._final)
        else:
            self.out.replace(self._final)

    def drop(self) -> None:
        """Remove a result that was not kept."""
        from honestly.sources.checkpoints.replace import remove

        if self._draft is None:
            return
        for path in (self.out, self._draft.path):
            remove(path)
        self._draft.release()


@contextmanager
def open_target(out: str, exclusions: str) -> Generator[Target]:
    """A context with the target; a result that was not kept is removed at the end."""
    from honestly.sources.checkpoints.writer import Output

    target = Target(Output.at(out).path, exclusions)
    try:
        yield target
    finally:
        target.drop()


def identity(path: str) -> tuple[int, int] | None:
    """What tells the file or folder at a path from one that replaced it; None if there is none."""
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_mtime_ns


@contextmanager
def handle_termination() -> Generator[None]:
    """SIGTERM and a closed terminal (SIGHUP) clean up like Ctrl-C; only SIGKILL can leave a temporary file."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before: dict[signal.Signals, Any] = {}
    try:
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)  # Windows has no SIGHUP, and `nohup` ignores it
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, stop)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def progress(silent: bool, passes: float) -> Generator[Any]:
    """A progress bar with bytes, rate and remaining time, on a terminal."""
    from honestly.bars import Bars

    with Bars(stderr=True, unit="bytes", left=True, transient=True, silent=silent) as bars:
        bar = bars.add("reading")

        def update(done: int, one_pass: int) -> None:
            bars.update(bar, done=done, total=max(done, passes * one_pass))

        yield update
