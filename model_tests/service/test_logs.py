"""Output for operators: log lines as text or JSON, and Prometheus metrics."""

from __future__ import annotations

import fcntl
import io
import json
import logging
import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from model_tests.support.broker.brokers import SMALL_STORE, wait_until
from model_tests.support.broker.raw_client import PATIENCE_S, RawClient
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from longpoll_broker import metrics
from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.metrics import BrokerCollector
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_runtime import log_stream
from longpoll_runtime.log_stream import LINES_PER_SECOND_MAX, Format, logging_to
from longpoll_runtime.logs import JsonFormatter, event
from longpoll_runtime.real import RealRuntime

RUNTIME = RealRuntime()
log = logging.getLogger("longpoll.tried")


@contextmanager
def read(kind: Format = "json", level: str = "info") -> Iterator[io.StringIO]:
    stream = io.StringIO()
    with logging_to(stream, kind, level):
        yield stream


@contextmanager
def unheard() -> Iterator[None]:
    """Disable pytest's log handlers, because a lone surrogate cannot be sent between pytest's processes."""
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    try:
        yield
    finally:
        root.handlers = handlers


def objects(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def events(stream: io.StringIO, name: str) -> list[dict[str, Any]]:
    return [told for told in objects(stream) if told.get("event") == name]


def note(text: str, number: int = 1) -> None:
    for _number in range(number):
        log.warning("%s", text)


def test_connections_and_refused_requests_are_logged(tmp_path: Path) -> None:
    """The log reports the opening and the end of a connection, and each refused request with its reason."""
    with read() as stream, Broker.start(RUNTIME, str(tmp_path / "store"), store_config=SMALL_STORE) as broker:
        with RawClient(broker.address) as client:
            assert client.put("no/topic").code == 1
            assert client.pull("unknown").code == 17
            assert client.call(7777).code == 3
        wait_until(lambda: bool(events(stream, "connection_closed")))
        with RawClient(broker.address) as client:
            client.send_bytes(b"\xff" * 8)
            assert client.wait_closed()
        wait_until(lambda: len(events(stream, "connection_closed")) == 2)
    opened = events(stream, "connection_opened")
    closed = events(stream, "connection_closed")
    refused = events(stream, "request_refused")
    assert [told["connection"] for told in opened] == [told["connection"] for told in closed]
    assert closed[0]["reason"] == "the peer closed it"
    assert closed[1]["reason"].startswith("it sent what cannot be read: ")
    assert [(told["code"], told["answer"]) for told in refused] == [(310, 1), (11, 17), (7777, 3)]
    assert {told["peer"] for told in refused} == {opened[0]["peer"]}
    assert all(told["reason"] for told in refused)


def test_a_refusal_by_the_accounts_is_a_warning(tmp_path: Path) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text("accounts:\n  - {accessKey: RocketMQ, secretKey: 12345678}\n")
    config = BrokerConfig(acl_file=str(accounts))
    with (
        read(level="warning") as stream,
        Broker.start(RUNTIME, str(tmp_path / "store"), config=config, store_config=SMALL_STORE) as broker,
        RawClient(broker.address) as client,
    ):
        assert client.call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}).code == ResponseCode.SYSTEM_ERROR
    (told,) = objects(stream)
    assert (told["event"], told["level"], told["code"]) == ("access_refused", "warning", 30)
    assert told["reason"] == "No accessKey is configured"
    assert told["peer"] in told["message"]


def test_the_state_of_an_opened_store_is_logged(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    with read() as stream:
        for _start in range(2):
            Broker.start(RUNTIME, store, store_config=SMALL_STORE).stop()
        (tmp_path / "store" / "abort").touch()
        Broker.start(RUNTIME, store, store_config=SMALL_STORE).stop()
    told = events(stream, "store_recovered")
    assert [(one["crashed"], one["level"]) for one in told] == [(False, "info")] * 2 + [(True, "warning")]
    assert all(one["log_start"] <= one["dispatched_from"] <= one["log_end"] for one in told)


def test_log_lines_from_one_line_of_code_are_limited() -> None:
    """Log lines above the limit per second are dropped, and the next line states the number of dropped lines."""

    def write(text: str, now_s: float, line: int = 1) -> None:
        record = log.makeRecord(log.name, logging.WARNING, __file__, line, text, (), None)
        record.created = now_s
        log.handle(record)

    with read() as stream:
        for _number in range(LINES_PER_SECOND_MAX + 30):
            write("storm", 1000.0)
        write("from elsewhere", 1000.0, line=2)
        write("after", 1001.0)
        write("calm", 1001.0)
    told = objects(stream)
    assert [one["message"] for one in told] == ["storm"] * LINES_PER_SECOND_MAX + ["from elsewhere", "after", "calm"]
    assert [one.get("left_out") for one in told[-3:]] == [None, 30, None]


@pytest.mark.parametrize(
    "text",
    ["a\n2026-01-01 WARNING forged", "\x1b[2J", "b\u2028c", "\ud800"],
    ids=["line end", "control character", "line separator", "lone surrogate"],
)
@pytest.mark.parametrize("kind", ["text", "json"])
def test_log_text_from_a_client_cannot_forge_a_line(text: str, kind: Format) -> None:
    with unheard(), read(kind) as stream:
        log.warning("%s", text)
        log.warning("with fields", extra=event("tried", name=text))
    assert len(stream.getvalue().splitlines()) == 2
    assert "\x1b" not in stream.getvalue()


def test_records_as_json() -> None:
    """An event's field `message` does not replace the message of the log line."""
    told = []
    kinds: tuple[Format, ...] = ("json", "text")
    for kind in kinds:
        with read(kind) as stream:
            try:
                int("a\nforged line")
            except ValueError:
                log.exception("it failed")
        told.append(stream.getvalue())
    assert json.loads(told[0])["error"].splitlines()[0].startswith("Traceback")
    first, *others = told[1].splitlines()
    assert first.endswith("it failed")
    assert all(line.startswith("    ") for line in others)
    record = logging.LogRecord("l", logging.INFO, "p", 1, "the text", None, None)
    record.__dict__ |= event("tried", message="another", path=Path("/x"))
    told = json.loads(JsonFormatter().format(record))
    assert (told["message"], told["path"], told["event"]) == ("the text", "/x", "tried")
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    with read("text", "debug"):
        assert root.level == logging.DEBUG
    assert (list(root.handlers), root.level) == before
    assert log_stream.LINES_PER_SECOND_MAX == LINES_PER_SECOND_MAX


ROOT = Path(__file__).parents[2]
EVENT = re.compile(r'\bevent\(\s*"([a-z_]+)"')


def undocumented(source: str, page: str) -> set[str]:
    table = page.split("## The log", 1)[1].split("\n## ", 1)[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return set(EVENT.findall(source)) ^ set(re.findall(r"`([a-z_]+)`", "".join(rows)))


def test_every_event_is_documented() -> None:
    """Every documented event is logged somewhere in the code, and every logged event is documented."""
    files = sorted((ROOT / "reference" / "longpoll_broker").rglob("*.py"))
    files += [ROOT / "reference" / "longpoll_runtime" / name for name in ("log_stream.py", "threads.py")]
    source = "".join(path.read_text(encoding="utf-8") for path in files)
    page = (ROOT / "docs" / "broker.md").read_text(encoding="utf-8")
    assert undocumented(source, page) == set()


def test_a_full_log_pipe_delays_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """If standard error is a full pipe, log lines are dropped and counted, and no request waits."""
    monkeypatch.setattr(log_stream, "LINES_PER_SECOND_MAX", 1_000_000)
    reading, writing = os.pipe()
    read_end, stream = os.fdopen(reading, "rb", buffering=0), os.fdopen(writing, "w")
    with read_end, stream, logging_to(stream, "json", "info"):
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 16_384)
        thread = threading.Thread(target=note, args=("x" * 5_000, 100), daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
        is_stuck = thread.is_alive()
        content = read_end.read(1 << 20)
        assert not is_stuck
        note("read again")
        content += read_end.read(1 << 20)
        lines = [json.loads(line) for line in content.splitlines()]
    *whole, dropped, last = lines
    assert (dropped["event"], dropped["level"], last["message"]) == ("lines_dropped", "warning", "read again")
    assert dropped["count"] + len(whole) == 100
    assert 3 <= len(whole) <= 4
    assert {line["message"] for line in whole} == {"x" * 5_000}


def test_a_closed_log_pipe_has_no_effect(capsys: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream, logging_to(stream, "text", "info"):
        note("one", 2)
    assert capsys.readouterr().err == ""


Values = dict[tuple[str, ...], float]


def told(text: str) -> Values:
    """Returns every sample of a metrics page by name and labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def values(broker: Broker) -> Values:
    registry = CollectorRegistry()
    registry.register(BrokerCollector(broker))
    return told(generate_latest(registry).decode())


def test_unauthenticated_clients_cannot_add_metric_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown codes share one series, and the number of (group, topic) pairs is limited."""
    monkeypatch.setattr(metrics, "LAG_COUNT_MAX", 3)
    with Broker.start(RUNTIME, str(tmp_path / "store"), store_config=SMALL_STORE) as broker:
        with RawClient(broker.address) as client:
            for code in range(5_000, 5_010):
                assert client.call(code).code == 3
        for number in range(10):
            broker.offsets.commit("T", f"G{number}", 0, 1)
        found = values(broker)
    assert found["longpoll_requests_total", "unknown"] == 10
    assert sum(name == "longpoll_requests_total" for name, *_labels in found) == 1
    assert sum(name == "longpoll_group_lag_messages" for name, *_labels in found) == 3


def test_metrics_are_computed_for_one_client_at_a_time() -> None:
    """Sixteen threads that compute metrics would take the interpreter from the I/O loops."""
    order: list[str] = []

    @contextmanager
    def lock() -> Iterator[None]:
        order.append("begin")
        yield
        order.append("end")

    broker: Any = SimpleNamespace(runtime=SimpleNamespace(lock=lock))

    def computed(_environ: Any, _start: Any) -> list[bytes]:
        order.append("metrics")
        return []

    def ask_again(_environ: Any, start: Any) -> list[bytes]:
        return list(app({"PATH_INFO": "/metrics"}, start))

    assert list(metrics.with_health(computed, broker)({"PATH_INFO": "/metrics"}, print)) == []
    assert order == ["begin", "metrics", "end"]
    statuses: list[str] = []
    broker = SimpleNamespace(runtime=SimpleNamespace(lock=nullcontext))
    app = metrics.with_health(ask_again, broker)
    assert list(ask_again({}, lambda status, _headers: statuses.append(status))) == [
        b"metrics: too many requests at a time\n"
    ]
    assert statuses == ["503 Service Unavailable"]


def test_incomplete_requests_do_not_block_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new connection replaces the oldest one, and slow connections are closed."""
    monkeypatch.setattr(metrics, "HTTP_COUNT_MAX", 2)
    now_ns = [0]
    server, thread = start_http_server(0, "127.0.0.1", CollectorRegistry())
    try:
        metrics.limit(server, lambda: now_ns[0])
        address = ("127.0.0.1", server.server_port)
        half = [socket.create_connection(address, PATIENCE_S) for _ in range(3)]
        half[2].sendall(b"GET /metrics HTTP/1.1\r\n")
        assert half[0].recv(1) == b""
        with socket.create_connection(address, PATIENCE_S) as whole:
            whole.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert whole.recv(12) == b"HTTP/1.0 200"
        assert half[1].recv(1) == b""
        now_ns[0] = metrics.HTTP_NS_MAX + 1
        assert half[2].recv(1) == b""
        for each in half:
            each.close()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
