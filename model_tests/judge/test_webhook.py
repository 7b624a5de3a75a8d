"""Findings are posted in order until accepted, without delaying the judge; Prometheus counts them."""

from __future__ import annotations

import socket
import struct
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from model_tests.support.broker.brokers import wait_until
from model_tests.support.judge.histories import ENCODE
from model_tests.support.ports import closed_port
from prometheus_client.parser import text_string_to_metric_families

from longpoll.views import follow as webhook_module
from longpoll.views.follow import FollowCollector, Webhook, checked_url, told_at
from longpoll_judge.generate import Load, simulate, simulated_meta
from longpoll_judge.read.growing_history import stamps_of
from longpoll_judge.run.follow import Progress
from longpoll_judge.run.pipeline import judge
from longpoll_judge.show.findings_file import open_checkpoint
from longpoll_spec.errors import ConfigError
from longpoll_spec.history import META_FILE

PATIENCE_S = 30.0


class Receiver:
    """Answers one POST after another with the codes that it is given, and then with 200.

    Invariant: `came` grows under `changed` alone.
    """

    def __init__(self, codes: Sequence[int] = ()) -> None:
        self.codes = list(codes)
        self.came: list[tuple[str, bytes]] = []
        self.changed = threading.Condition()
        self.may_answer = threading.Event()
        self.may_answer.set()

    def answer(self, name: str, body: bytes) -> int:
        """Note what came; the code to answer."""
        self.may_answer.wait(PATIENCE_S)
        with self.changed:
            self.came.append((name, body))
            self.changed.notify_all()
            return self.codes.pop(0) if self.codes else 200

    def wait_for(self, count: int) -> list[str]:
        """The names that came, once there are so many."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.came) >= count, PATIENCE_S)
            return [name for name, _body in self.came]


@contextmanager
def received(receiver: Receiver) -> Iterator[str]:
    """The receiver behind HTTP on loopback; its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            code = receiver.answer(self.headers["Longpoll-Finding-Id"], body)
            self.send_response(code)
            if code == 302:
                self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/secret-path"
    finally:
        receiver.may_answer.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def posting(url: str, said: list[str], patience_s: float = PATIENCE_S) -> Iterator[Webhook]:
    """A webhook that is started, and ended after the block."""
    webhook = Webhook(url, None, said.append)
    webhook.start()
    try:
        yield webhook
    finally:
        webhook.end(patience_s)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again at once."""
    monkeypatch.setattr(webhook_module, "BACKOFF_S", 0.001)
    monkeypatch.setattr(webhook_module, "LOOK_S", 0.01)


def test_it_is_tried_again_until_it_is_taken() -> None:
    """Each finding once and in order, though the first is turned away twice."""
    receiver, said = Receiver([503, 429]), list[str]()
    with received(receiver) as url:
        with posting(url, said) as webhook:
            webhook.put("one", b'{"id":"one"}')
            webhook.put("two", b'{"id":"two"}')
        assert receiver.wait_for(4) == ["one", "one", "one", "two"]
    assert receiver.came[-1] == ("two", b'{"id":"two"}')
    assert (webhook.taken, webhook.failures, webhook.pending) == (2, 2, 0)
    assert "secret" not in "".join(said)


@pytest.mark.parametrize("code", [400, 302])
def test_what_is_refused_is_not_tried_again(code: int) -> None:
    """A redirect counts as a refusal."""
    receiver, said = Receiver([code]), list[str]()
    with received(receiver) as url, posting(url, said) as webhook:
        webhook.put("one", b"{}")
        webhook.put("two", b"{}")
        assert receiver.wait_for(2) == ["one", "two"]
    assert (webhook.taken, webhook.refused) == (1, 1)
    assert f"rejects finding one with {code}" in said[0]


def test_who_offers_never_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the receiver does not answer, surplus findings are dropped, counted, and posted next time."""
    monkeypatch.setattr(webhook_module, "WAITING_MAX", 3)
    monkeypatch.setattr(webhook_module, "ANSWER_S", 0.05)
    receiver = Receiver()
    receiver.may_answer.clear()
    names = [str(number) for number in range(10)]
    limits = {"late_ms": 1.0}
    with received(receiver) as url:
        with open_checkpoint(tmp_path / "told", ["/a"], limits) as kept:
            said: list[str] = []
            webhook = Webhook(url, kept.posted, said.append)
            webhook.start()
            for name in names:
                webhook.put(name, b"{}")
            webhook.end(0)
            assert webhook.dropped >= 6
            lines = "\n".join(said)
            # Once more if the first one was taken to be posted after another had found no room.
            assert lines.count("those that come now are posted at the next start") in {1, 2}
            told = {each.name: each.samples[0].value for each in FollowCollector(Progress(["/a"]), webhook).collect()}
            assert told["longpoll_judge_webhook_dropped"] == webhook.dropped
            assert webhook.pending == 10
        receiver.may_answer.set()
        receiver.codes.clear()
        monkeypatch.setattr(webhook_module, "WAITING_MAX", 10)
        monkeypatch.setattr(webhook_module, "ANSWER_S", PATIENCE_S)
        for pending in (10, 0):
            with open_checkpoint(tmp_path / "told", ["/a"], limits) as kept:
                again = Webhook(url, kept.posted, lambda _line: None)
                again.start()
                for name in names:
                    again.put(name, b"{}")
                assert again.offered == pending
                again.end(PATIENCE_S)
                assert len(kept.posted.ids) == len(names)
                assert all(name in kept.posted.ids for name in names)


def test_nobody_there_is_no_fault_of_ours() -> None:
    """A port without a listener is tried until the end, and logged once."""
    said: list[str] = []
    with closed_port() as (host, port), posting(f"http://{host}:{port}/secret-path", said, patience_s=0) as webhook:
        webhook.put("one", b"{}")
        wait_until(lambda: webhook.failures > 0)
    assert webhook.pending == 1
    assert said == ["the webhook at 127.0.0.1 did not take a finding: URLError; it is tried again"]


@pytest.mark.parametrize(
    "url",
    ["", "host/path", "ftp://host", "file:///etc/passwd", "http://", "http://h:99999/", "http://h/a b", "http://h/\n"],
)
def test_what_is_no_url_is_said_before_the_work(url: str) -> None:
    """And so is one that is read from a file."""
    with pytest.raises(ConfigError, match="--webhook needs"):
        checked_url(url)


def told(where: str) -> dict[tuple[str, ...], float]:
    """The served metrics, by name and label values."""
    with urllib.request.urlopen(f"http://{where}/metrics", timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus_hears_of_the_judgement_and_of_the_lag(tmp_path: Path) -> None:
    """The counts are the judge's; what was written since is behind, until it is judged."""
    events = list(simulate(Load(events=300, timeout_ms=60)))
    at = next(n for n, event in enumerate(events) if n > 100 and event.event == "answer_sent")
    events[at] = msgspec.structs.replace(events[at], offset_next=events[at].offset_next + 9)
    (tmp_path / META_FILE).write_bytes(ENCODE(simulated_meta()))
    part = tmp_path / "part-0.ndjson"
    lines = [ENCODE(event) + b"\n" for event in events]
    part.write_bytes(b"".join(lines[:200]))
    progress = Progress([str(tmp_path)])
    collector = FollowCollector(progress)
    with told_at(0, collector) as where:
        before = told(where)
        collector.result = result = judge([tmp_path], engine="local")
        progress.stamps = stamps_of([part.parent])
        judged = told(where)
        with part.open("ab") as file:
            file.write(lines[200])
        behind = told(where)
        with pytest.raises(ConfigError, match="cannot serve metrics"), told_at(int(where.split(":")[1]), collector):
            pass

    (finding,) = result.findings
    assert before["longpoll_judge_behind_seconds",] > 0
    assert ("longpoll_judge_events",) not in before
    assert judged["longpoll_judge_events",] == 200
    assert judged["longpoll_judge_findings", finding.clause, "violated"] == 1
    assert judged["longpoll_judge_verdict", "invalid"] == 1
    assert judged["longpoll_judge_verdict", "valid so far"] == 0
    assert judged["longpoll_judge_judged", finding.property] == result.judged[finding.property]
    assert judged["longpoll_judge_behind_seconds",] == judged["longpoll_judge_behind_bytes",] == 0
    assert behind["longpoll_judge_behind_seconds",] > 0
    assert behind["longpoll_judge_behind_bytes",] == len(lines[200])
    assert behind["process_resident_memory_bytes",] > 0


def test_who_asks_for_metrics_and_goes_leaves_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines on stderr are findings; the next one who asks is answered."""
    at_once = struct.pack("ii", 1, 0)
    with told_at(0, FollowCollector(Progress(["/a"]))) as where:
        host, _colon, port = where.partition(":")
        for content in (b"GET /" + b"a" * 70_000, b"\x00\xff\r\n\r\n", b"GET /metrics HTTP/1.0\r\n\r\n"):
            with socket.create_connection((host, int(port)), PATIENCE_S) as asking:
                asking.sendall(content)
                asking.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        with urllib.request.urlopen(f"http://{where}/metrics", timeout=PATIENCE_S) as answer:
            assert b"longpoll_judge_behind_seconds" in answer.read()
        for thread in threading.enumerate():
            if "process_request_thread" in thread.name:
                thread.join(PATIENCE_S)

    assert capsys.readouterr().err == ""
