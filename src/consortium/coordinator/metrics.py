"""What a coordinator counts, as Prometheus text. Names of federations, never of sites."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from consortium.coordinator.desk import Desk
from consortium.coordinator.office import Office
from consortium.coordinator.telling import Teller
from consortium.core.tables import Step

TEXT = CONTENT_TYPE_PLAIN_0_0_4
_SECONDS = (0.002, 0.01, 0.05, 0.2, 1.0, 5.0, 30.0, 60.0)


class Metrics:
    """The counters of the HTTP edge, and gauges that are read when somebody looks."""

    def __init__(self, office: Office, waiting: Callable[[Desk], int]) -> None:
        # Without a second series for each that says since when: nobody asks.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no types
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(_Federations(office, waiting))
        self._requests = Counter(
            "consortium_requests",
            "Requests answered.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "consortium_request_seconds",
            "From a request's head to the end of its answer; polls wait on purpose.",
            ("route",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._received, self._sent = (
            Counter(f"consortium_{way}_bytes", f"Bytes of bodies {way}.", registry=self._registry)
            for way in ("received", "sent")
        )

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request is over."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def count_bytes(self, received: int, sent: int) -> None:
        self._received.inc(received)
        self._sent.inc(sent)

    def text(self) -> bytes:
        """Everything, as it is now."""
        return generate_latest(self._registry)


class _Federations(Collector):
    """Asks every federation when somebody looks."""

    def __init__(self, office: Office, waiting: Callable[[Desk], int]) -> None:
        self._office, self._waiting = office, waiting

    def describe(self) -> list[Metric]:
        return []  # a registry asks for names; ours are no one else's

    def collect(self) -> Iterator[Metric]:
        tellers = self._office.tellers()
        for name, help_text, value in _GAUGES:
            gauge = GaugeMetricFamily(f"consortium_{name}", help_text, labels=["federation"])
            for teller in tellers:
                gauge.add_metric([teller.desk.name], value(teller.desk))
            yield gauge
        polls = GaugeMetricFamily(
            "consortium_open_polls", "Sites that wait for news.", labels=["federation"]
        )
        for teller in tellers:
            polls.add_metric([teller.desk.name], self._waiting(teller.desk))
        yield polls
        yield _steps(tellers)
        yield _rounds(tellers)


def _round(desk: Desk) -> int:
    open_round = desk.state.round
    return open_round.number if open_round else 0


_GAUGES: tuple[tuple[str, str, Callable[[Desk], int]], ...] = (
    ("round", "The open round; 0: none.", _round),
    ("sites", "Sites on the roster.", lambda desk: len(desk.state.roster)),
    ("model_version", "The present version.", lambda desk: desk.state.current),
    ("log_facts", "Facts in the log.", lambda desk: desk.size),
    ("is_finished", "1 when there are no further rounds.", lambda desk: int(desk.is_finished)),
)


def _steps(tellers: list[Teller]) -> Metric:
    """One series a step, 1 for the one that the open round is in."""
    gauge = GaugeMetricFamily(
        "consortium_round_step", "Where the open round is.", labels=["federation", "step"]
    )
    for teller in tellers:
        open_round = teller.desk.state.round
        for step in Step:
            is_here = open_round is not None and open_round.step is step
            gauge.add_metric([teller.desk.name, step.name.lower()], int(is_here))
    return gauge


def _rounds(tellers: list[Teller]) -> Metric:
    counter = CounterMetricFamily(
        "consortium_rounds", "Rounds that have ended.", labels=["federation", "outcome"]
    )
    for teller in tellers:
        outcomes = Tally(str(record["outcome"]) for record in teller.rounds())
        for outcome, count in sorted(outcomes.items()):
            if outcome:  # the open round has none yet
                counter.add_metric([teller.desk.name, outcome], count)
    return counter
