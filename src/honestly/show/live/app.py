"""The web application: one page, its files, one stream of events, and drawings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from honestly.show.live.drawings import Drawings
from honestly.show.live.feed import Feed
from honestly.show.live.guard import Guard
from honestly.show.live.ledger import Cursor
from honestly.show.live.results import results_svg
from honestly.show.live.stream import HEARTBEAT, events
from honestly.show.palette import STYLE

STATIC = Path(__file__).parent / "static"
MOST_READERS = 100
MOST_RUNS = 24


def application(feed: Feed, *, host: str = "127.0.0.1", heartbeat: float = HEARTBEAT) -> Starlette:
    """The application that serves a feed to browsers that request `host`."""
    drawings = Drawings(feed.ledger)

    async def page(request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def style(request: Request) -> Response:
        return FileResponse(STYLE)

    async def stream(request: Request) -> Response:
        if feed.readers >= MOST_READERS:
            message = f"More than {MOST_READERS} tabs are open: close some.\n"
            return PlainTextResponse(message, status_code=503, headers={"Retry-After": "5"})
        runs = _runs(request)
        if len(runs) > MOST_RUNS:
            return _too_many(runs)
        resumed = Cursor.parse(request.headers.get("last-event-id"))
        known = resumed or Cursor.parse(request.query_params.get("since"))
        body = events(feed, known, runs, resumed=resumed is not None, heartbeat=heartbeat)
        return StreamingResponse(
            body, media_type="text/event-stream", headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )

    async def results(request: Request) -> Response:
        drawing = results_svg(run for _, run in feed.ledger.runs.values())
        if not drawing:
            return PlainTextResponse("No run has a result yet.\n", status_code=404)
        return Response(drawing, media_type="image/svg+xml")

    async def draw(request: Request) -> Response:
        runs, names = _runs(request), request.query_params.getlist("name")
        if len(runs) > MOST_RUNS:
            return _too_many(runs)
        if request.url.path.endswith(".svg"):
            draw = drawings.maps_file if request.url.path == "/maps.svg" else drawings.curves_file
            return _answer(await draw(runs, names), "image/svg+xml")
        if request.url.path == "/curves":
            return _answer(await drawings.curves(runs, names), "text/html")
        return _answer(await drawings.maps(runs[0] if runs else "", _theme(request)), "text/html")

    async def cells(request: Request) -> Response:
        number = request.query_params.get("map", "")
        place = int(number) if number in ("0", "1", "2") else -1
        answer = _answer(await drawings.cells(request.query_params.get("run", ""), place, _theme(request)), "image/png")
        # another version of the run has another address
        answer.headers["Cache-Control"] = "private, max-age=600, immutable"
        return answer

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None, None]:
        watching = asyncio.create_task(feed.run())
        try:
            yield
        finally:
            feed.stop()
            await watching

    return Starlette(
        routes=[
            Route("/", page),
            Route("/events", stream),
            Route("/results.svg", results),
            *(Route(path, draw) for path in ("/curves", "/curves.svg", "/maps", "/maps.svg")),
            Route("/cells.png", cells),
            Route("/static/style.css", style),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[Middleware(Guard, host=host)],
        lifespan=lifespan,
    )


def _runs(request: Request) -> list[str]:
    """The runs that a request names, each once."""
    return list(dict.fromkeys(request.query_params.getlist("run")))


def _theme(request: Request) -> str:
    return "dark" if request.query_params.get("theme") == "dark" else "light"


def _answer(drawing: str | bytes | None, kind: str) -> Response:
    return Response(status_code=204) if drawing is None else Response(drawing, media_type=kind)


def _too_many(runs: list[str]) -> Response:
    return PlainTextResponse(f"{len(runs)} runs: at most {MOST_RUNS} at once.\n", status_code=400)
