"""Metrics for Prometheus: connections, requests, held pulls, the log's position, and the lag of groups.

`/health` reports disk failures to a supervisor. Values are read when Prometheus asks; serving a request only increments
one counter. The HTTP server: see `longpoll serve --metrics`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from socket import SHUT_RDWR, socket
from typing import Any, Final, TypeAlias

from attrs import define
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from longpoll_broker.broker import Broker
from longpoll_broker.io.channel import ConnectionLimit
from longpoll_broker.io.processors import NAMES
from longpoll_broker.store.message_store import PARTS

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
"""A WSGI application (PEP 3333)."""
HttpServer: TypeAlias = Any
"""A threaded `socketserver.TCPServer`, as `prometheus_client.start_http_server` creates."""
HEALTH: Final = "/health"
HTTP_COUNT_MAX: Final = 16
"""Maximum simultaneous HTTP connections, of which Prometheus needs one; a further connection replaces an old one."""
COMPUTED_COUNT_MAX: Final = 4
"""Maximum HTTP requests that compute metrics or wait for the computation of another request."""
HTTP_NS_MAX: Final = 10_000_000_000
"""Maximum time of one connection, ns, from its start to the last byte of the answer."""
LAG_COUNT_MAX: Final = 10_000
"""Maximum reported pairs of group and topic, because each pair is a time series and clients can create groups."""


def with_health(metrics: App, broker: Broker) -> App:
    """Returns an HTTP application that serves metrics, and at `/health` 200, or 503 with the names of failing parts."""
    one_at_a_time = broker.runtime.lock()
    computing: list[None] = []

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == HEALTH:
            troubles = broker.store.troubles
        elif len(computing) < COMPUTED_COUNT_MAX:
            computing.append(None)
            try:
                # Only one computation runs at a time, because parallel computations would compete for the interpreter
                # lock and delay I/O.
                with one_at_a_time:
                    return metrics(environ, start_response)
            finally:
                computing.pop()
        else:
            troubles = {"metrics": "too many requests at a time"}
        text = "".join(f"{part}: {why}\n" for part, why in sorted(troubles.items())) or "ok\n"
        status = "503 Service Unavailable" if troubles else "200 OK"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")])
        return [text.encode("utf-8", "backslashreplace")]

    return app


def limit(server: HttpServer, now_ns: Callable[[], int]) -> None:
    """Limit an HTTP server to `HTTP_COUNT_MAX` connections at a time, each for `HTTP_NS_MAX`.

    Each connection uses a thread and a file descriptor, which clients of the broker need too. At the limit, a new
    connection replaces the oldest connection of the address that has the most connections, so slow clients cannot block
    other clients. Call this function before the first request.
    """
    begin, end = server.process_request, server.shutdown_request
    deadlines_ns: dict[socket, tuple[int, str]] = {}

    def process_request(request: socket, client_address: tuple[str, int]) -> None:
        served = list(deadlines_ns.items())
        if len(served) >= HTTP_COUNT_MAX:
            ((most, _count),) = Counter(host for _request, (_deadline_ns, host) in served).most_common(1)
            cut(next(each for each, (_deadline_ns, host) in served if host == most))
        deadlines_ns[request] = now_ns() + HTTP_NS_MAX, client_address[0]
        begin(request, client_address)

    def cut(request: socket) -> None:
        deadlines_ns.pop(request, None)
        # After the shutdown, the thread that serves the request reads the end of the stream and closes the connection.
        with suppress(OSError):
            request.shutdown(SHUT_RDWR)

    def shutdown_request(request: socket) -> None:
        deadlines_ns.pop(request, None)
        end(request)

    def service_actions() -> None:
        """Close the overdue connections; the server calls this function between requests, and twice a second."""
        for request, (deadline_ns, _host) in list(deadlines_ns.items()):
            if now_ns() > deadline_ns:
                cut(request)

    server.process_request = process_request
    server.shutdown_request = shutdown_request
    server.service_actions = service_actions


@define(eq=False)
class BrokerCollector(Collector):
    """Reads one broker's values whenever Prometheus asks."""

    broker: Broker

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its current value."""
        broker = self.broker
        yield GaugeMetricFamily("longpoll_connections", "Open connections.", broker.connection_count)
        yield from self._limits()
        yield GaugeMetricFamily("longpoll_held_pulls", "Pulls that are held.", len(broker.hold_service))
        yield GaugeMetricFamily("longpoll_topics", "Topics.", len(broker.topics.by_name))
        yield GaugeMetricFamily("longpoll_groups", "Consumer groups.", len(broker.groups.by_name))
        yield self._requests()
        yield self._log()
        yield self._troubles()
        yield GaugeMetricFamily(
            "longpoll_store_cut_bytes",
            "Bytes that the start cut off from the log's end at a damaged record, and put aside.",
            broker.store.cut_size,
        )
        yield self._lag()

    def _requests(self) -> Metric:
        found = CounterMetricFamily("longpoll_requests", "Requests received, by code.", labels=["code"])
        for code, count in sorted(self.broker.handler.request_counts.copy().items()):
            found.add_metric([NAMES.get(code, "unknown")], count)
        return found

    def _limits(self) -> Iterator[Metric]:
        totals = self.broker.totals
        yield GaugeMetricFamily(
            "longpoll_unfinished_bytes", "Bytes of requests that have not ended or wait.", totals.unfinished.total
        )
        yield GaugeMetricFamily(
            "longpoll_unsent_bytes", "Bytes of answers that their peers have not taken.", totals.unsent.total
        )
        found = CounterMetricFamily(
            "longpoll_limits_reached", "Connections closed or refused for a limit.", labels=["limit"]
        )
        for limit in ConnectionLimit:
            found.add_metric([limit.value], totals.reached[limit])
        yield found
        entries = GaugeMetricFamily("longpoll_table_entries", "Entries of tables that clients fill.", labels=["table"])
        refused = CounterMetricFamily(
            "longpoll_table_refusals", "Entries for which a table or a share had no room.", labels=["table"]
        )
        for quota in (*self.broker.handler.quotas, *self.broker.name_server.quotas):
            entries.add_metric([quota.name], quota.used)
            refused.add_metric([quota.name], quota.refused)
        yield entries
        yield refused

    def _log(self) -> Metric:
        store = self.broker.store
        found = GaugeMetricFamily("longpoll_log_end_bytes", "How far the log is, by stage.", labels=["stage"])
        found.add_metric(["appended"], store.log_end)
        found.add_metric(["flushed"], store.flushed_end)
        found.add_metric(["visible"], store.dispatched_end)
        return found

    def _troubles(self) -> Metric:
        troubles = self.broker.store.troubles
        found = GaugeMetricFamily(
            "longpoll_store_trouble", "Whether a part of the store could not be made durable.", labels=["part"]
        )
        for part in PARTS:
            found.add_metric([part], int(part in troubles))
        return found

    def _lag(self) -> Metric:
        found = GaugeMetricFamily(
            "longpoll_group_lag_messages", "Messages that a group has still to consume.", labels=["group", "topic"]
        )
        store = self.broker.store
        for pair, offsets in list(self.broker.offsets.by_pair.items())[:LAG_COUNT_MAX]:
            topic, _at, group = pair.partition("@")
            lag = sum(max(store.visible_end(topic, queue_id) - at, 0) for queue_id, at in offsets.copy().items())
            found.add_metric([group, topic], lag)
        return found
