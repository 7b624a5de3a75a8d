"""What a broker's operator reads: one line a happening, as text or as JSON, and never without end."""

from __future__ import annotations

import fcntl
import io
import json
import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from model_tests.support.broker.brokers import SMALL_STORE, wait_until
from model_tests.support.broker.raw_client import PATIENCE_S, RawClient, pull_fields, send_fields

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
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
    """Keep pytest's handlers out: a report with half a surrogate pair cannot be sent between its processes."""
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
    """Log from one place in the code, so many times."""
    for _number in range(number):
        log.warning("%s", text)


def test_what_happens_to_a_connection_and_its_requests_is_told(tmp_path: Path) -> None:
    """That it is opened, each request that is refused with its answer and reason, and why the connection ended."""
    with read() as stream, Broker.start(RUNTIME, str(tmp_path / "store"), store_config=SMALL_STORE) as broker:
        with RawClient(broker.address) as client:
            assert client.call(RequestCode.SEND_MESSAGE_V2, send_fields("no/topic", 0), b"x").code == 1
            assert client.call(RequestCode.PULL_MESSAGE, pull_fields("unknown", 0)).code == 17
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


def test_a_store_tells_how_it_was_found(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    with read() as stream:
        for _start in range(2):
            Broker.start(RUNTIME, store, store_config=SMALL_STORE).stop()
        (tmp_path / "store" / "abort").touch()
        Broker.start(RUNTIME, store, store_config=SMALL_STORE).stop()
    told = events(stream, "store_recovered")
    assert [(one["crashed"], one["level"]) for one in told] == [(False, "info")] * 2 + [(True, "warning")]
    assert all(one["log_start"] <= one["dispatched_from"] <= one["log_end"] for one in told)


def test_one_place_writes_only_so_much_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other places are not held up, and the next line of the place says how many were left out."""
    now_s = 1000.0
    make = logging.LogRecord

    def at_that_time(*arguments: Any, **named: Any) -> logging.LogRecord:
        record = make(*arguments, **named)
        record.created = now_s
        return record

    monkeypatch.setattr(logging, "_logRecordFactory", at_that_time)
    with read() as stream:
        note("storm", LINES_PER_SECOND_MAX + 30)
        log.warning("from elsewhere")
        now_s = 1001.0
        note("after")
        note("calm")
    told = objects(stream)
    assert [one["message"] for one in told] == ["storm"] * LINES_PER_SECOND_MAX + ["from elsewhere", "after", "calm"]
    assert [one.get("left_out") for one in told[-3:]] == [None, 30, None]


@pytest.mark.parametrize(
    "text",
    ["a\n2026-01-01 WARNING forged", "\x1b[2J", "b\u2028c", "\ud800"],
    ids=["line end", "control", "separator", "half a pair"],
)
@pytest.mark.parametrize("kind", ["text", "json"])
def test_what_a_stranger_sent_cannot_look_like_a_line(text: str, kind: Format) -> None:
    with unheard(), read(kind) as stream:
        log.warning("%s", text)
        log.warning("with fields", extra=event("tried", name=text))
    assert len(stream.getvalue().splitlines()) == 2
    assert "\x1b" not in stream.getvalue()


def test_a_traceback_is_part_of_its_record() -> None:
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


def test_a_field_never_hides_what_every_line_has() -> None:
    """An event's own `message` does not replace the line's; a value that JSON has no form for becomes text."""
    record = logging.LogRecord("l", logging.INFO, "p", 1, "the text", None, None)
    record.__dict__ |= event("tried", message="another", path=Path("/x"))
    told = json.loads(JsonFormatter().format(record))
    assert (told["message"], told["path"], told["event"]) == ("the text", "/x", "tried")


ROOT = Path(__file__).parents[2]
EVENT = re.compile(r'\bevent\(\s*"([a-z_]+)"')


def undocumented(source: str, page: str) -> set[str]:
    """The events of a source that have no row in the page's table, and rows that have no event."""
    table = page.split("## The log", 1)[1].split("\n## ", 1)[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return set(EVENT.findall(source)) ^ set(re.findall(r"`([a-z_]+)`", "".join(rows)))


def test_every_event_is_documented() -> None:
    """And every documented one is told somewhere; a planted one of either kind is found."""
    files = sorted((ROOT / "reference" / "longpoll_broker").rglob("*.py"))
    files.append(ROOT / "reference" / "longpoll_runtime" / "log_stream.py")
    source = "".join(path.read_text(encoding="utf-8") for path in files)
    page = (ROOT / "docs" / "broker.md").read_text(encoding="utf-8")
    assert undocumented(source, page) == set()
    assert undocumented(source + 'extra=event("planted")', page) == {"planted"}
    assert undocumented(source.replace('"access_refused"', '"other"'), page) == {"access_refused", "other"}


def test_nothing_is_left_installed() -> None:
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    with read("text", "debug"):
        assert root.level == logging.DEBUG
    assert (list(root.handlers), root.level) == before
    assert log_stream.LINES_PER_SECOND_MAX == LINES_PER_SECOND_MAX


def test_nobody_waits_for_who_reads_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error is a pipe that nobody reads: lines are dropped, and the next one says how many."""
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


def test_a_log_that_nobody_can_read_costs_nobody_anything(capsys: pytest.CaptureFixture[str]) -> None:
    """The other end of the pipe is closed."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream, logging_to(stream, "text", "info"):
        note("one", 2)
    assert capsys.readouterr().err == ""
