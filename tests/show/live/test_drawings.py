"""What the server draws for the live page: the written pages' components, once per change, with every name escaped."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest
from study_being_run import FakeStudy, record
from watch_server import Watched, watched

from honestly.runs.reader import read_record
from honestly.show import svg
from honestly.show.live import drawings
from honestly.show.live.drawings import Drawings
from honestly.show.live.ledger import Ledger
from honestly.show.live.model import RunRow, Snapshot
from honestly.show.live.rounds import detail
from honestly.show.maps import over_rounds

HOSTILE = "\"'><script>alert(1)</script>\u202e"


def ledger(rounds: int, *runs: str, of: int = 100, clients: int = 6) -> Ledger:
    """A ledger that has read the same rounds of every run."""
    made = Ledger()
    add_rounds(made, rounds, *runs, of=of, clients=clients)
    return made


def add_rounds(to: Ledger, rounds: int, *runs: str, of: int = 100, clients: int = 6) -> None:
    found = detail([record(t, clients=clients) for t in range(1, rounds + 1)], {"clients": clients})
    rows = tuple(RunRow(run, {}, "running", rounds, of) for run in runs)
    to.take(Snapshot("folder", "x", rows), "", dict.fromkeys(runs, found))


def drawn(made: Drawings, *runs: str, names: tuple[str, ...] = (), file: bool = False) -> str:
    text = asyncio.run((made.curves_file if file else made.curves)(runs, names))
    assert text is not None
    return text


def points(text: str) -> list[str]:
    return re.findall(r'points="([^"]*)"', text)


def test_the_curves_of_a_run_are_those_of_its_written_page() -> None:
    text = drawn(Drawings(ledger(30, "a", of=30)), "a")
    records = [read_record(record(t))[0] for t in range(1, 31)]
    written = [svg.chart(over_rounds("x", [("a", records)], key), drawings.HEIGHT) for key in ("asr", "accuracy")]
    assert points(text) == [line for one in written for line in points(one)]  # the first curve lies on top
    assert "<figcaption>Accuracy and attack success rate</figcaption>" in text
    assert f"<b>{records[-1].accuracy:.3f}</b>" in text


def test_a_run_fills_the_chart_of_all_its_rounds() -> None:
    (_, half) = points(drawn(Drawings(ledger(50, "a", of=100)), "a"))
    assert half.split()[-1].startswith("494.9,")  # (50 - 1) / (100 - 1)


def test_several_runs_have_a_chart_per_measure_and_the_same_colour_in_both() -> None:
    made = ledger(4, "a", "b/c")
    made.details["a"].rounds = [{**r, "asr": None} for r in made.details["a"].rounds]
    text = drawn(Drawings(made), "a", "b/c", names=(HOSTILE, "B"))
    accuracy, asr = text.split("</figure>")[:2]
    assert re.findall(r'class="curve (c\d)"', accuracy) == ["c2", "c1"]
    assert re.findall(r'class="curve (c\d)"', asr) == ["c2"]
    assert '<a href="#/run/b%2Fc"><bdi>B</bdi></a>' in asr
    assert "<script" not in text
    assert "\u202e" not in text
    assert "alert(1)" in text
    assert " style=" not in text  # the policy of the page forbids it


def test_a_drawing_is_made_once_per_change(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ledger(4, "a", "b")
    ours, calls = Drawings(made), list[int]()
    monkeypatch.setattr(svg, "chart", lambda *a, chart=svg.chart, **k: calls.append(1) or chart(*a, **k))
    first = drawn(ours, "a")
    assert drawn(ours, "a") is first
    assert len(calls) == 1
    drawn(ours, "b")
    add_rounds(made, 5, "a", "b")
    assert drawn(ours, "a") != first
    assert len(calls) == 3
    made.forget("b")  # nobody watches it any more
    drawn(ours, "a", names=("A",))
    assert not [key for key in ours._cache if "b" in key]  # pyright: ignore[reportPrivateUsage]
    for i in range(2 * drawings.MOST_CACHED):
        drawn(ours, "a", names=(str(i),))
    assert len(ours._cache) == drawings.MOST_CACHED  # pyright: ignore[reportPrivateUsage]


def test_a_file_has_its_own_colours() -> None:
    file = drawn(Drawings(ledger(4, "a", "b")), "a", "b", file=True)
    assert file.startswith("<svg xmlns=")
    assert file.count("<polyline") == 4
    assert "var(" not in file


def test_the_maps_of_a_run_have_escaped_names_and_images_of_their_own() -> None:
    made = ledger(4, "a/b", of=10)
    made.details["a/b"].head = {**made.details["a/b"].head, "names": [HOSTILE, *"bcdef"]}
    ours = Drawings(made)
    text = asyncio.run(ours.maps("a/b", "dark"))
    assert text is not None
    assert text.count('<figure class="heat">') == 2
    assert 'data-shape="6 10"' in text
    assert "<script" not in text
    assert "\u202e" not in text
    assert " style=" not in text
    addresses = [address.replace("&amp;", "&") for address in re.findall(r'<image [^>]*href="([^"]*)"', text)]
    assert [address.partition("&version=")[0] for address in addresses] == [
        "/cells.png?run=a%2Fb&map=0&theme=dark",
        "/cells.png?run=a%2Fb&map=1&theme=dark",
    ]
    dark, light = (asyncio.run(ours.cells("a/b", 1, theme)) for theme in ("dark", "light"))
    assert dark is not None
    assert light is not None
    assert dark[:4] == light[:4] == b"\x89PNG"
    assert dark != light
    assert asyncio.run(ours.cells("a/b", 2, "dark")) is None
    before = addresses[0]
    add_rounds(made, 5, "a/b", of=10)
    assert before.replace("&", "&amp;") not in (asyncio.run(ours.maps("a/b", "dark")) or "")
    assert asyncio.run(ours.cells("a/b", 1, "dark")) != dark


def test_the_maps_of_several_runs_are_a_file() -> None:
    ours = Drawings(ledger(4, "a", "b"))
    text = asyncio.run(ours.maps_file(("a", "b"), ("A", HOSTILE)))
    assert text is not None
    titles = [e.text or "" for e in ElementTree.fromstring(text).iter() if e.get("font-weight") == "bold"]
    assert [title.rpartition(": ")[2] for title in titles] == ["Who really attacked", "Probability of being honest"] * 2
    assert titles[0].startswith("A: ")


def test_an_update_stays_small_with_many_clients_and_rounds() -> None:
    """The sizes that `docs/explanation/design.md` names: 100 clients, 1,000 rounds."""
    ours = Drawings(ledger(1000, "a", of=1000, clients=100))
    curves, maps = asyncio.run(ours.curves(["a"])), asyncio.run(ours.maps("a", "light"))
    images = [asyncio.run(ours.cells("a", i, "light")) for i in range(2)]
    assert curves is not None
    assert maps is not None
    assert len(curves) == pytest.approx(25_000, rel=0.1)
    assert len(maps) == pytest.approx(10_000, rel=0.1)
    assert sum(len(image or b"") for image in images) == pytest.approx(63_000, rel=0.1)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Watched]:
    study = FakeStudy(tmp_path)
    for id in study.ids()[:2]:
        study.finish(id)
    with watched(tmp_path) as found:
        yield found
    study.close()


def test_curves_are_served_while_a_page_watches_the_run(server: Watched) -> None:
    assert server.get("/curves?run=run-0000").status == 204
    server.events("/events?run=run-0000").until(lambda e: "run-0000" in e.details)
    page, file = (server.get(f"/{what}?{urlencode({'run': 'run-0000'})}") for what in ("curves", "curves.svg"))
    assert (page.status, file.status) == (200, 200)
    assert page.headers["content-type"].startswith("text/html")
    assert file.headers["content-type"] == "image/svg+xml"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    image = server.get("/cells.png?run=run-0000&map=0")  # FedAvg: the map of the attackers alone
    assert (image.status, image.headers["content-type"]) == (200, "image/png")
    assert [server.get(f"/cells.png?run=run-0000&map={i}").status for i in ("1", "-1", "x", "")] == [204] * 4
    many = "&".join(f"run={i}" for i in range(25))
    assert server.get(f"/curves?{many}").status == 400
