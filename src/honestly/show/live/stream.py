"""Server-sent events: one response that lasts as long as the tab is open."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from honestly.show.live.feed import Feed
from honestly.show.live.ledger import Cursor

HEARTBEAT = 10.0
RETRY = 2000  # milliseconds after which a browser connects again


def frame(event: str, data: dict[str, Any], id: str = "") -> str:
    r"""One event as text; JSON has no line breaks, so the data is one line.

    >>> frame("beat", {"now": 3}, "a-1")
    'id: a-1\nevent: beat\ndata: {"now":3}\n\n'
    """
    body = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return (f"id: {id}\n" if id else "") + f"event: {event}\ndata: {body}\n\n"


async def events(
    feed: Feed, known: Cursor | None, runs: Sequence[str], *, resumed: bool, heartbeat: float = HEARTBEAT
) -> AsyncIterator[str]:
    """The events that a reader has not seen, then every change, and a heartbeat in between.

    Args:
        feed: what is watched.
        known: the cursor that the reader sent.
        runs: the runs whose rounds it wants.
        resumed: True if it had this stream before, and therefore also knows the rounds up to its cursor.
        heartbeat: seconds without an event until a heartbeat is sent.
    """
    yield f"retry: {RETRY}\n\n"
    cursors: dict[str, Cursor | None] = dict.fromkeys(runs, known if resumed else None)
    async with feed.reading(runs):
        while not feed.stopped:
            ledger, turn = feed.ledger, feed.turn
            # the state may be old if there was no reader for a while
            batch = ledger.after(known, cursors) if feed.fresh else []
            if batch:
                known = ledger.cursor
                # a run without data stays unknown, so its rounds are later sent from the first one
                cursors = {run: known if run in ledger.details else mine for run, mine in cursors.items()}
            # only the end of a batch has an id: a reader that disconnects before it gets the batch again
            batch.append(("beat", {"now": round(time.time(), 1)}))
            sent = str(known) if known is not None else ""
            yield "".join(frame(*event, id=sent if i + 1 == len(batch) else "") for i, event in enumerate(batch))
            await feed.news(turn, heartbeat)
