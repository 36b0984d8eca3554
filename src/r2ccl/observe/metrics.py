"""Prometheus metrics of the communicators of a process, read from the core when they are scraped."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from http.server import HTTPServer
from socketserver import TCPServer
from typing import Any

from prometheus_client import CollectorRegistry, MetricsHandler
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ..errors import R2cclError
from .view import LINK_STATES, View

_LABELS = ("job", "comm", "rank")
_RAIL_STATES = ("up", "degraded", "down")
_REQUEST_S = 2.0

# name, help, key of stats(), scale
_COUNTERS = (
    ("r2ccl_calls", "Calls begun.", "calls", 1.0),
    ("r2ccl_replayed_chunks", "Chunks sent again after their link failed.", "replayed_chunks", 1.0),
    ("r2ccl_hedged_chunks", "Chunks sent over a second link since theirs had become slow.", "hedged_chunks", 1.0),
    (
        "r2ccl_relayed_chunks",
        "Chunks handed to other ranks, since no link to their own was left.",
        "relayed_chunks",
        1.0,
    ),
    ("r2ccl_forwarded_chunks", "Chunks of other ranks passed on.", "forwarded_chunks", 1.0),
    ("r2ccl_duplicate_chunks", "Copies of chunks that had come already.", "duplicate_chunks", 1.0),
    ("r2ccl_refused_frames", "Frames that made no sense.", "refused_frames", 1.0),
    ("r2ccl_repairs", "Links repaired: all they had carried has arrived over others.", "repairs", 1.0),
    ("r2ccl_repair_seconds", "Time from suspicion to the end of the repair, summed.", "repair_ms", 1e-3),
    ("r2ccl_events_dropped", "Events lost since nobody took them.", "events_dropped", 1.0),
)


class Collector:
    """Builds every metric anew from ``View.stats`` and ``View.report``."""

    def __init__(self, views: Callable[[], Sequence[View]]) -> None:
        self._views = views

    def collect(self) -> Iterator[Metric]:
        """One scrape."""
        seen = []
        for view in self._views():
            try:
                seen.append(((view.job, view.name, str(view.rank)), view.stats(), view.report()))
            except R2cclError:  # it is being closed
                continue
        for name, text, key, scale in _COUNTERS:
            counter = CounterMetricFamily(name, text, labels=_LABELS)
            for labels, stats, _ in seen:
                counter.add_metric(labels, stats[key] * scale)
            yield counter
        for name, text, pick in _BY_DIRECTION:
            counter = CounterMetricFamily(name, text, labels=(*_LABELS, "direction"))
            for labels, stats, _ in seen:
                for direction, value in pick(stats):
                    counter.add_metric((*labels, direction), value)
            yield counter
        yield from self._rails([(labels, stats) for labels, stats, _ in seen])
        gauges: list[tuple[str, str, Callable[[Any, Any], float]]] = [
            ("r2ccl_up", "1 while the communicator can be used, 0 after an error.", lambda s, r: r.state == "OK"),
            ("r2ccl_epoch", "Times the ranks agreed on another state of the rails.", lambda s, r: s["epoch"]),
            ("r2ccl_staging_bytes", "Memory for chunks that came early.", lambda s, r: s["staging_bytes"]),
            (
                "r2ccl_call_seconds",
                "How long the call under way has taken; 0: there is none.",
                lambda s, r: r.calls[0].for_s if r.calls else 0,
            ),
        ]
        for name, text, value_of in gauges:
            gauge = GaugeMetricFamily(name, text, labels=_LABELS)
            for labels, stats, report in seen:
                gauge.add_metric(labels, float(value_of(stats, report)))
            yield gauge

    @staticmethod
    def _rails(seen: list[tuple[tuple[str, ...], dict[str, Any]]]) -> Iterator[Metric]:
        labels = (*_LABELS, "rail")
        moved = CounterMetricFamily("r2ccl_rail_bytes", "Bytes on a rail.", labels=(*labels, "direction"))
        again = CounterMetricFamily("r2ccl_rail_replayed_bytes", "Bytes a rail took over.", labels=labels)
        state = GaugeMetricFamily("r2ccl_rail_state", "1 for the state the rail is in.", labels=(*labels, "state"))
        links = GaugeMetricFamily("r2ccl_links", "Links of a rail, by state.", labels=(*labels, "state"))
        for own, stats in seen:
            by_rail: dict[str, dict[str, int]] = {}
            for link in stats["links"]:
                at = by_rail.setdefault(link["rail"], dict.fromkeys((*LINK_STATES, "tx", "rx", "replayed"), 0))
                at[link["state"]] += 1
                for key in ("tx", "rx", "replayed"):
                    at[key] += link[f"{key}_bytes"]
            for rail, at in by_rail.items():
                for direction in ("tx", "rx"):
                    moved.add_metric((*own, rail, direction), at[direction])
                again.add_metric((*own, rail), at["replayed"])
                for name in LINK_STATES:
                    links.add_metric((*own, rail, name), at[name])
            for rail_stats in stats["rails"]:
                for name in _RAIL_STATES:
                    state.add_metric((*own, rail_stats["name"], name), rail_stats["state"] == name)
        yield from (moved, again, state, links)


def _chunks(stats: dict[str, Any]) -> Iterable[tuple[str, float]]:
    return (("sent", stats["chunks_sent"]), ("received", stats["chunks_received"]))


_BY_DIRECTION = (("r2ccl_chunks", "Chunks sent and received.", _chunks),)


class _Handler(MetricsHandler):
    timeout = _REQUEST_S  # for a client that says nothing


class Endpoint(HTTPServer):
    """The port of the metrics; ``handle_request`` serves one client. Raises OSError where it cannot listen."""

    timeout = 0  # of handle_request: who calls it knows that a client is there

    def __init__(self, address: str, port: int, views: Callable[[], Sequence[View]]) -> None:
        registry = CollectorRegistry()
        registry.register(Collector(views))
        handler = _Handler.factory(registry)
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._client: socket.socket | None = None
        super().__init__((address, port), handler)

    def server_bind(self) -> None:
        """Without HTTPServer's look-up of the host's name, which may take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def get_request(self) -> tuple[socket.socket, Any]:
        """The next client, remembered for ``interrupt``."""
        self._client, address = super().get_request()
        return self._client, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no matter."""

    def interrupt(self) -> None:
        """From another thread: the client that is being served, if any, is cut off."""
        client = self._client
        if client is not None:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
