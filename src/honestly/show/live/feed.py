"""Reads the folder while pages are open, and wakes their streams when something changes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from honestly.show.live.ledger import Ledger
from honestly.show.live.model import Detail, Snapshot, SourceError
from honestly.show.live.source import LiveSource, open_source

INTERVAL = 1.0


class Feed:
    """One folder, watched for all readers at once.

    Args:
        folder: the folder of a study or of runs; it may not exist yet.
        interval: seconds between two reads.
    """

    def __init__(self, folder: Path, *, interval: float = INTERVAL) -> None:
        self.folder, self.interval = folder, interval
        self.ledger = Ledger()
        self.readers = 0
        self.turn = 0  # incremented whenever there may be something new
        self.fresh = False  # whether the folder was read since the first of the current readers came
        self.wanted: Counter[str] = Counter()
        self.stopped = False
        self._source: LiveSource | None = None
        self._thread = ThreadPoolExecutor(1, "honestly-watch")  # all reading happens here
        self._news = asyncio.Event()  # replaced at every change, which wakes those waiting on the old one
        self._look_now = asyncio.Event()

    @asynccontextmanager
    async def reading(self, runs: Iterable[str]) -> AsyncGenerator[None, None]:
        """Register a reader for the duration of the context; `runs` are the runs whose rounds it needs."""
        runs = list(runs)
        self.fresh = self.fresh and self.readers > 0
        self.readers += 1
        self.wanted.update(runs)
        self._look_now.set()
        try:
            yield
        finally:
            self.readers -= 1
            self.wanted.subtract(runs)
            for run in runs:
                if self.wanted[run] <= 0:
                    del self.wanted[run]
                    self.ledger.forget(run)

    async def news(self, turn: int, timeout: float) -> None:
        """Wait for a newer turn, for the end, or for the timeout."""
        if self.stopped or self.turn != turn:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), timeout)

    def stop(self) -> None:
        """Release all readers."""
        self.stopped = True
        self._look_now.set()
        self._wake()

    async def run(self) -> None:
        """Read the folder repeatedly while there are readers."""
        loop = asyncio.get_running_loop()
        try:
            while not self.stopped:
                self._look_now.clear()
                if self.readers:
                    look, problem, details = await loop.run_in_executor(self._thread, self._look, list(self.wanted))
                    # the reader of a run may have left in the meantime
                    still = {run: detail for run, detail in details.items() if run in self.wanted}
                    if self.ledger.take(look, problem, still) or not self.fresh:
                        self.fresh = True
                        self._wake()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._look_now.wait(), self.interval if self.readers else None)
        finally:
            self._thread.submit(self._close)
            self._thread.shutdown(wait=False)

    def _wake(self) -> None:
        self.turn += 1
        self._news.set()
        self._news = asyncio.Event()

    def _look(self, wanted: list[str]) -> tuple[Snapshot | None, str, dict[str, Detail]]:
        try:
            return self._read(wanted)
        except SourceError as error:
            self._close()
            return None, str(error), {}
        except Exception as error:  # the page stays up and shows the error
            self._close()
            return None, f"{self.folder} cannot be read: {type(error).__name__}: {error}", {}

    def _read(self, wanted: list[str]) -> tuple[Snapshot | None, str, dict[str, Detail]]:
        if self._source is None:
            self._source = open_source(self.folder)
        look = self._source.look()
        return look, "", {run: detail for run in wanted if (detail := self._source.detail(run)) is not None}

    def _close(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None
