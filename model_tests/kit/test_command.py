"""`longpoll kit URL`: verdicts on services on a real port, and one sentence if a service cannot be tested."""

from __future__ import annotations

import asyncio
import gc
import json
import select
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import click
import pytest
from click.testing import CliRunner, Result

from longpoll.commands.kit import kit
from longpoll.options.values import Duration
from longpoll_kit.subjects import addresses, on_nats

DESCRIPTION = 'publish = "POST /{queue}"\npoll = "GET /{queue}?{position}?{wait_ms}"\n'
QUICK = ("--for", "0.1", "--polls", "2", "--seed", "14")


class Server(ThreadingHTTPServer):
    """A server that joins its threads only after their polls have ended."""

    request_queue_size = 64


QUEUES: Final[dict[str, list[str]]] = defaultdict(list)
CHANGED: Final = threading.Condition()


class Right(BaseHTTPRequestHandler):
    """A correct feed: `POST /queue`, and `GET /queue?offset?timeout_ms`, which answers with a list of texts."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with CHANGED:
            QUEUES[self.path].append(self.message(body))
            CHANGED.notify_all()
        self.answer([])

    def do_GET(self) -> None:
        path, offset, timeout_ms = self.path.split("?")
        with CHANGED:
            self.wait_for(lambda: bool(QUEUES[path][int(offset) :]), int(timeout_ms) / 1000)
        self.answer(QUEUES[path][int(offset) :])

    def message(self, body: bytes) -> str:
        return body.decode()

    def wait_for(self, has_some: Callable[[], bool], timeout_s: float) -> None:
        CHANGED.wait_for(has_some, timeout_s)

    def answer(self, bodies: list[str]) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(bodies).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's
        """Log nothing."""


class TakesJson(Right):
    """A feed as frameworks make it: its messages are JSON objects, and each request needs a key."""

    def parse_request(self) -> bool:
        """Refuse a request without the key, and a message that is not declared as JSON."""
        is_read = super().parse_request()
        wanted = {"X-Key": "secret"} | ({"Content-Type": "application/json"} if self.command == "POST" else {})
        if is_read and any(self.headers[name] != value for name, value in wanted.items()):
            self.send_error(401)
            return False
        return is_read

    def message(self, body: bytes) -> str:
        text: str = json.loads(body)["text"]
        return text


class WaitsOnce(Right):
    """A feed that checks for messages and then waits without a second check."""

    def wait_for(self, has_some: Callable[[], bool], timeout_s: float) -> None:
        if not has_some():
            CHANGED.release()
            select.select([], [], [], 0.005)  # This pause is as long as a database query.
            CHANGED.acquire()
            CHANGED.wait(timeout_s)


@pytest.fixture
def serving() -> Iterator[Callable[[type[Right]], str]]:
    running: list[tuple[Server, threading.Thread]] = []

    def serve(handler: type[Right]) -> str:
        server = Server(("127.0.0.1", 0), handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        running.append((server, thread))
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield serve
    for server, thread in running:
        server.shutdown()
        server.server_close()
        thread.join()


def run(*words: str) -> Result:
    return CliRunner().invoke(kit, list(words))


def described(directory: Path, text: str = DESCRIPTION) -> str:
    file = directory / "service.toml"
    file.write_text(text)
    return str(file)


def test_a_service_may_take_json_and_need_headers(serving: Callable[[Any], str], tmp_path: Path) -> None:
    """The service refuses requests without JSON and headers, and the error names the setting for the message."""
    url, own = serving(TakesJson), 'publish_body = "text"\nheaders = {X-Key = "secret"}\n'
    refused = run(url, "--service", described(tmp_path), *QUICK)
    done = run(url, "--service", described(tmp_path, DESCRIPTION + own), "--json", *QUICK)

    assert (refused.exit_code, "the name of the message in the file's `publish_body`" in refused.output) == (2, True)
    assert json.loads(done.stdout)["axes"], done.output


def test_an_answer_that_the_description_does_not_fit_is_reported(serving: Callable[[Any], str], tmp_path: Path) -> None:
    done = run(serving(Right), "--service", described(tmp_path, f'{DESCRIPTION}body = "txt"\n'), *QUICK)

    assert (done.exit_code, "answered a poll with b'" in done.output) == (2, True), done.output
    assert "in the file's `messages`, `body` and `position`" in done.output


def test_a_correct_service_is_never_invalid(serving: Callable[[Any], str], tmp_path: Path) -> None:
    """The verdict may be unknown on a busy machine, because the run has few random examples."""
    limits = ("--wake-ms", "5000", "--late-ms", "5000", "--for", "5")
    done = run(serving(Right), "--service", described(tmp_path), "--json", *QUICK, *limits)
    told = json.loads(done.stdout)

    assert told["verdict"] != "invalid", told
    assert done.exit_code == told["exit_code"]
    assert told["timed"] > 0


def test_a_fault_is_invalid_and_can_be_replayed(serving: Callable[[Any], str], tmp_path: Path) -> None:
    url, file = serving(WaitsOnce), described(tmp_path)
    done = run(url, "--service", file, "--wake-ms", "200", "--for", "20", "--polls", "2", "--seed", "14")

    assert done.exit_code == 1, done.output
    assert done.stdout.startswith(("invalid: no_lost_wakeup: ", "invalid: nothing_lost: ", "invalid: not_early: "))
    assert f"kit {url} --service {file} --for 20.0 --wake-ms 200 --polls 2 --seed 14" in done.stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("publish = ", "Invalid value"),
        ('publish = "POST /"\n', "missing required field `poll`"),
        (f'{DESCRIPTION}wait = "2"\n', "unknown field `wait`; docs/kit.md describes the file"),
        (DESCRIPTION.replace("POST ", ""), "matching regex '^[A-Z]+ /' - at `$.publish`"),
        (f'{DESCRIPTION}semantics = "queue"\n', "Invalid enum value 'queue' - at `$.semantics`"),
        (f'{DESCRIPTION}wait_unit_ms = "1"\n', "Expected `int`, got `str` - at `$.wait_unit_ms`"),
    ],
)
def test_a_mistake_in_the_description_is_reported_in_one_sentence(text: str, said: str, tmp_path: Path) -> None:
    done = run("http://127.0.0.1:1", "--service", described(tmp_path, text))

    assert (done.exit_code, said in " ".join(done.output.split())) == (2, True), done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ftp://127.0.0.1",), "has no known scheme; write one of redis://"),
        (("redis://127.0.0.1", "--mode", "lpop"), "redis:// has no mode 'lpop'; write one of blpop, blmove"),
        (("nats://127.0.0.1", "--mode", "push"), "nats:// has no mode 'push'; write one of pull"),
        (("http://127.0.0.1:1",), "needs a file that describes its requests: --service FILE"),
    ],
)
def test_an_untestable_service_is_reported_in_one_sentence(words: tuple[str, ...], said: str) -> None:
    done = run(*words)

    assert (done.exit_code, said in " ".join(done.output.split())) == (2, True), done.output


@pytest.mark.parametrize("scheme", ["http", "redis", "nats", "kafka", "sqs+http", "beanstalkd", "etcd"])
def test_a_refused_connection_is_reported_in_one_sentence(scheme: str, tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # The port is bound but not listening.
        described_by = ("--service", described(tmp_path)) if scheme == "http" else ()
        done = run(f"{scheme}://127.0.0.1:{unused.getsockname()[1]}", *described_by)

    assert (done.exit_code, "does not answer: " in done.output) == (2, True), done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("0.5", 0.5), ("60s", 60), ("2m", 120), ("1h", 3_600), ("0s", None), ("2x", None)]
)
def test_a_duration_has_a_unit(text: str, seconds: float | None) -> None:
    with pytest.raises(click.BadParameter) if seconds is None else nullcontext():
        assert Duration(above_zero=True).convert(text, None, None) == seconds


def test_no_call_outlives_a_nats_server_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The call must leave no unfinished task, because asyncio would log the task later, perhaps during another test."""

    async def connect(*_words: Any, **_options: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("nats.connect", connect)
    monkeypatch.setattr(on_nats, "CALL_S", 0.01)
    with pytest.raises(TimeoutError):
        on_nats.NatsSubject("nats://127.0.0.1:1", "")
    gc.collect()

    assert caplog.messages == []


def test_the_process_of_a_local_service_is_found() -> None:
    """The kit subtracts the time in which the service's process waits for a processor from the lateness of answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        process_id = addresses.local_process("127.0.0.1", listening.getsockname()[1])
        assert Path(f"/proc/{process_id}").samefile("/proc/self")
    assert addresses.local_process("192.0.2.1", 80) is None
