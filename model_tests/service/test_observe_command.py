"""The command `longpoll observe` as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from model_tests.service.commands import StartCommand, commands
from model_tests.service.observed import events_of
from model_tests.support.broker.brokers import Connect, StartBroker
from model_tests.support.broker.raw_client import pull_fields, send_message

from longpoll.cli import main
from longpoll_judge.run.pipeline import judge
from longpoll_protocol.codes import RequestCode

ALLOWED_MS = 1_000.0


@pytest.fixture
def observe() -> Iterator[StartCommand]:
    """Start `longpoll observe`; killed at the end if it still runs."""
    with commands("observe") as start:
        yield start


def address(text: str) -> tuple[str, int]:
    host, port = text.rsplit(":", 1)
    return host, int(port)


def ready_words(process: subprocess.Popen[str]) -> dict[str, str]:
    """The words of the ready line; of a broker the proxy's address."""
    assert process.stdout is not None
    first, *words = process.stdout.readline().split()
    assert first == "ready"
    return {name: value.rsplit("@", 1)[-1] for name, value in (word.split("=", 1) for word in words)}


def test_a_signal_ends_it_with_the_whole_history(
    observe: StartCommand, start_broker: StartBroker, connect: Connect, tmp_path: Path
) -> None:
    """One ready line, every answer served, exit 0, nothing on stderr, and a history that is valid to its end."""
    broker = start_broker()
    broker_text = "{}:{}".format(*broker.address)
    history = tmp_path / "history"
    process = observe("--listen", "127.0.0.1:0", "--broker", broker_text, "--record", str(history))
    ready = ready_words(process)
    assert ready["record"] == str(history)
    client = connect(address(ready["broker"]))
    assert send_message(client, "T") == 0
    assert client.call(RequestCode.PULL_MESSAGE, pull_fields("T", 0)).code == 0
    assert client.call(RequestCode.PULL_MESSAGE, pull_fields("T", 1, timeout_ms=50)).code == 19
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")
    assert client.wait_closed()
    events = events_of(history)
    assert [event.event for event in events[-2:]] == ["connection_closed", "source_stopped"]
    result = judge([history], engine="local", wake_ms=ALLOWED_MS, late_ms=ALLOWED_MS)
    assert (result.verdict, result.requests) == ("valid", 2)


def test_a_killed_proxy(observe: StartCommand, start_broker: StartBroker, connect: Connect, tmp_path: Path) -> None:
    broker = start_broker()
    history = tmp_path / "history"
    process = observe(
        "--listen", "127.0.0.1:0", "--broker", "{}:{}".format(*broker.address), "--record", str(history), "--json"
    )
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    assert ready["name-server"] is None
    client = connect(address(ready["brokers"]["{}:{}".format(*broker.address)]))
    send_message(client, "T")
    client.send(RequestCode.PULL_MESSAGE, pull_fields("T", 1, timeout_ms=60_000))
    assert client.call(RequestCode.PULL_MESSAGE, pull_fields("T", 1, timeout_ms=500)).code == 19
    os.kill(process.pid, signal.SIGKILL)
    process.wait(30)
    result = judge([history], engine="local", wake_ms=ALLOWED_MS, late_ms=ALLOWED_MS)
    assert result.verdict == "unknown"
    # Of the answered pull the killed proxy may have written nothing.
    assert {gap["kind"] for gap in result.gaps} - {"nothing judged"} == {"source end", "not judged"}


def test_a_users_mistake_is_one_line_and_exit_2(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    record = ("--record", str(tmp_path / "history"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        here = "{}:{}".format(*taken.getsockname())
        any_port = ("--listen", "127.0.0.1:0")
        mistakes = (
            ((*any_port, *record), "add --broker or --name-server"),
            ((*any_port, "--broker", "there", *record), "HOST:PORT"),
            ((*any_port, "--broker", here, "--broker", here, *record), "given twice"),
            (("--listen", here, "--broker", here, *record), "choose another address"),
            ((*any_port, "--broker", here, "--record", str(file)), "choose a writable directory"),
        )
        for options, text in mistakes:
            done = CliRunner().invoke(main, ["observe", *options])
            assert (done.exit_code, done.stdout) == (2, ""), done.stderr
            assert text in done.stderr.replace("\n", " ")
            assert "Traceback" not in done.stderr
