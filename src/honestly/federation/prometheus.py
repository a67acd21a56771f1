"""The rounds as Prometheus metrics, through the official client (extra `[metrics]`)."""

from __future__ import annotations

import threading
from importlib.util import find_spec
from typing import Any
from weakref import WeakKeyDictionary

if find_spec("prometheus_client") is None:
    raise ModuleNotFoundError(
        "honestly.federation.prometheus needs the official client: pip install 'honestly[metrics]'",
        name="prometheus_client",
    )

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from honestly.federation.history import History
from honestly.federation.record import Round
from honestly.printable import printable
from honestly.result import Verdict

HONESTY_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
SECONDS_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0)
#: states of a client in a round, in addition to its verdict
STATES = ("asked", "answered", "used", "refused", "silent", "accused", "unusual", "abstained")
SILENT = "sent no reply"


class _Series:
    """The metrics of one registry. Several federations share them and differ in a label."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def of(kind: Any, name: str, about: str, *labels: str, **more: Any) -> Any:
            return kind(f"honestly_{name}", about, ("federation", *labels), registry=registry, **more)

        self.rounds = of(Counter, "rounds", "Rounds, by whether the model was averaged or kept.", "outcome")
        self.doubtful = of(Counter, "doubtful_rounds", "Rounds that need attention.")
        self.refusals = of(Counter, "refusals", "Clients that were excluded, without those that did not answer.")
        self.accusations = of(Counter, "accusations", "Clients judged to lie, summed over the rounds.")
        self.clients = of(Gauge, "clients", "Clients in the last round, by state.", "state")
        self.honesty = of(
            Histogram, "honesty", "Probability that a client is honest, one for each client and round.",
            buckets=HONESTY_BUCKETS,
        )  # fmt: skip
        self.seconds = of(Histogram, "round_seconds", "Duration of the decision.", buckets=SECONDS_BUCKETS)
        self.spread = of(Gauge, "spread", "Median distance of the believed updates from the average.")
        self.round = of(Gauge, "round", "The number of the last round.")
        self.last = of(Gauge, "last_round_timestamp_seconds", "When the last round ended.")
        self.client_honesty = of(Gauge, "client_honesty", "Honesty in a client's last round.", "client")


_known: WeakKeyDictionary[CollectorRegistry, _Series] = WeakKeyDictionary()
_lock = threading.Lock()


class RoundMetrics:
    """Turns rounds into metrics: `RoundMetrics().watch(strategy.history)`, then `serve(9464)`.

    Works with every history: `RobustFedAvg(...).history`, `RobustAggregator(...).rounds`, `Referee(...).history` and
    `hn.Buffer(...).history`.

    Args:
        registry: your own registry, to add the metrics to an existing endpoint, or None for a new one.
        federation: a label for all series, if one process or one Prometheus sees several federations.
        clients: how many clients get their own series, `honestly_client_honesty`. There is a limit because every series
            takes memory in Prometheus permanently, and clients may choose their ids; 0 for none.

    Example:
        >>> from honestly.federation import Referee
        >>> metrics = RoundMetrics(federation="digits").watch(Referee("mean").history)
        >>> metrics.registry.get_sample_value("honestly_doubtful_rounds_total", {"federation": "digits"})
        0.0
    """

    def __init__(self, registry: CollectorRegistry | None = None, *, federation: str = "", clients: int = 0) -> None:
        if isinstance(clients, bool) or not isinstance(clients, int) or clients < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(
                f"clients={clients!r}: expected the number of clients that get their own series, 0 or more"
            )
        self.registry = CollectorRegistry() if registry is None else registry
        self.federation, self.most = printable(federation), clients
        with _lock:
            if self.registry not in _known:
                _known[self.registry] = _Series(self.registry)
            self._series = _known[self.registry]
        self._named: set[str] = set()
        for series in (self._series.doubtful, self._series.refusals, self._series.accusations):
            series.labels(self.federation)  # start at 0, so a rate can be computed
        for outcome in ("averaged", "kept"):
            self._series.rounds.labels(self.federation, outcome)

    def watch(self, history: History) -> RoundMetrics:
        """Count the rounds that are in the history, and every round that is added later."""
        for record in history:
            self.observe(record)
        history.listen(self.observe)
        return self

    def serve(self, port: int, host: str = "127.0.0.1") -> Any:
        """Serve an HTTP endpoint for Prometheus in a new thread; returns the server (`shutdown()` ends it).

        It shows how many clients are believed and, with `clients=`, which ones. Do not expose it to the clients.
        """
        server, _ = start_http_server(port, host, self.registry)
        return server

    def observe(self, record: Round) -> None:
        """Count one round."""
        of, me = self._series, self.federation
        verdicts = list((record.verdicts or {}).values())
        silent = sum(reason == SILENT for reason in record.excluded.values())
        refused = len(record.excluded) - silent
        used = len(record.clients) - len(record.excluded)
        counts = {
            "asked": len(record.clients),
            "answered": len(record.clients) - silent,
            "used": 0 if record.kept else used,
            "refused": refused,
            "silent": silent,
            "accused": len(record.accused),
            "unusual": verdicts.count(Verdict.UNUSUAL),
            "abstained": verdicts.count(Verdict.ABSTAINED),
        }
        for state in STATES:
            of.clients.labels(me, state).set(counts[state])
        of.rounds.labels(me, "kept" if record.kept else "averaged").inc()
        of.doubtful.labels(me).inc(int(record.attention))
        of.refusals.labels(me).inc(refused)
        of.accusations.labels(me).inc(len(record.accused))
        of.seconds.labels(me).observe(record.seconds)
        of.round.labels(me).set(record.number)
        of.last.labels(me).set_to_current_time()
        if record.spread is not None:
            of.spread.labels(me).set(record.spread)
        for client, p in (record.honesty or {}).items():
            if client in record.excluded:
                continue
            of.honesty.labels(me).observe(p)
            name = printable(client)[:100]
            if name in self._named or len(self._named) < self.most:
                self._named.add(name)
                of.client_honesty.labels(me, name).set(p)
