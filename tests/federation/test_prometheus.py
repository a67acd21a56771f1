"""The rounds as metrics, scraped over HTTP, and a dashboard that uses what is exported."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

import honestly as hn
from honestly.federation import Referee, Reply
from honestly.federation.prometheus import RoundMetrics


def replies(K: int = 12, liars: int = 3, seed: int = 0) -> list[Reply]:
    rng = np.random.default_rng(seed)
    sent = [Reply(f"site-{k}", update={"w": 1 + 0.3 * rng.normal(size=200)}) for k in range(K)]
    return [*sent[: K - liars], *(Reply(r.client, update={"w": -4 * r.update["w"]}) for r in sent[K - liars :])]


def value(metrics: RoundMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"honestly_{name}", {"federation": metrics.federation, **labels})


def test_a_round_in_numbers() -> None:
    referee = Referee("bayesian")
    referee.judge(1, replies())  # before anybody watches
    metrics = RoundMetrics(federation="digits").watch(referee.history)
    asked = [*(f"site-{k}" for k in range(12)), "asleep"]
    broken = Reply("broken", fault="holds 0 array records")
    referee.judge(2, [*replies(seed=1), broken], asked=[*asked, "broken"])
    states = {state: value(metrics, "clients", state=state) for state in ("asked", "answered", "used", "refused")}
    assert states == {"asked": 14, "answered": 13, "used": 12, "refused": 1}
    assert value(metrics, "clients", state="silent") == 1
    assert value(metrics, "clients", state="accused") == 3
    assert value(metrics, "accusations_total") == 6
    assert value(metrics, "refusals_total") == 1
    assert value(metrics, "rounds_total", outcome="averaged") == 2
    assert value(metrics, "rounds_total", outcome="kept") == 0
    assert value(metrics, "round") == 2
    assert value(metrics, "honesty_count") == 24
    assert value(metrics, "honesty_bucket", le="0.5") == 6
    assert value(metrics, "round_seconds_count") == 2
    spread = value(metrics, "spread")
    assert spread is not None
    assert 1 < spread < 20


def test_doubtful_and_kept_rounds_are_counted() -> None:
    referee = Referee("mean")
    metrics = RoundMetrics().watch(referee.history)
    referee.judge(1, replies(4, 0)[:1], asked=range(6))
    assert value(metrics, "rounds_total", outcome="kept") == 1
    assert value(metrics, "doubtful_rounds_total") == 1
    assert value(metrics, "clients", state="used") == 0


def test_a_buffer_exports_the_same_metrics() -> None:
    buffer = hn.Buffer(3, "mean")
    metrics = RoundMetrics().watch(buffer.history)
    for k in range(6):
        buffer.add(k, np.ones(3), version=buffer.version)
    assert value(metrics, "rounds_total", outcome="averaged") == 2


def test_client_names_are_limited_and_cannot_break_the_format() -> None:
    referee = Referee("bayesian")
    metrics = RoundMetrics(clients=3).watch(referee.history)
    evil = 'x"} 1\nhonestly_round 99'
    for number in range(1, 4):
        sent = [Reply(f"{evil}-{number}-{r.client}", update=r.update) for r in replies(seed=number)]
        referee.judge(number, sent)
    server = metrics.serve(0)
    try:
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        text = urllib.request.urlopen(url, timeout=10).read().decode()
    finally:
        server.shutdown()
        server.server_close()
    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert len(found["honestly_client_honesty"].samples) == 3
    assert [sample.value for sample in found["honestly_round"].samples] == [3]


def test_two_federations_share_a_registry() -> None:
    registry = CollectorRegistry()
    for name in ("a", "b"):
        referee = Referee("mean")
        RoundMetrics(registry, federation=name).watch(referee.history)
        referee.judge(1 if name == "a" else 7, replies(4, 0))
    assert registry.get_sample_value("honestly_round", {"federation": "a"}) == 1
    assert registry.get_sample_value("honestly_round", {"federation": "b"}) == 7


def test_a_listener_that_fails_does_not_stop_the_round(caplog: pytest.LogCaptureFixture) -> None:
    referee = Referee("mean")

    def broken(record: Any) -> None:
        raise RuntimeError("no such database")

    referee.history.listen(broken)
    metrics = RoundMetrics().watch(referee.history)
    out, _ = referee.judge(1, replies(4, 0))
    assert out is not None
    assert "no such database" in caplog.text
    assert value(metrics, "round") == 1


def test_without_the_client_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['prometheus_client'] = None; import honestly.federation.prometheus"
    run = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=False)
    assert run.stderr.splitlines()[-1].endswith("pip install 'honestly[metrics]'")


def test_a_wrong_limit_is_named() -> None:
    with pytest.raises(ValueError, match="clients=-1"):
        RoundMetrics(clients=-1)


def dashboard() -> dict[str, Any]:
    return json.loads((files("honestly.federation") / "grafana" / "dashboard.json").read_text())


def exported_names() -> set[str]:
    """Every name of a sample that a scrape can show."""
    referee = Referee("bayesian")
    metrics = RoundMetrics(clients=5).watch(referee.history)
    referee.judge(1, replies())
    return {sample.name for family in metrics.registry.collect() for sample in family.samples}


def test_the_dashboard_uses_only_exported_metrics() -> None:
    board, names = dashboard(), exported_names()
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked = {name for query in queries for name in re.findall(r"\bhonestly_\w+", query)}
    assert asked <= names
    assert {"honestly_rounds_total", "honestly_honesty_bucket", "honestly_spread", "honestly_clients"} <= asked
    used = {
        state for query in queries for group in re.findall(r'state=~?"([^"]*)"', query) for state in group.split("|")
    }
    assert used <= {"asked", "answered", "used", "refused", "silent", "accused", "unusual", "abstained"}
    for query in queries:
        for opening, closing in ("()", "{}", "[]"):
            assert query.count(opening) == query.count(closing)
        assert 'federation=~"$federation"' in query


def test_the_dashboard_has_what_grafana_needs_to_load_it() -> None:
    board = dashboard()
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= set(board)
    assert "id" not in board  # an id of another Grafana would be refused on import
    assert isinstance(board["schemaVersion"], int)
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        assert panel["type"] in {"stat", "timeseries", "heatmap"}
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not own & cells, f"{panel['title']} lies over another panel"
        cells |= own
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    assert variables["federation"]["definition"] == "label_values(honestly_round, federation)"
