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
from model_tests.service.commands import StartCommand, commands
from model_tests.service.observed import events_of

from longpoll_broker.testing.brokers import Connect, StartBroker
from longpoll_broker.testing.raw_client import PATIENCE_S, pull_fields, send_message
from longpoll_judge.run.job import judge
from longpoll_observe.observer import HANDSHAKES
from longpoll_protocol.codes import CommandFlag, RequestCode
from longpoll_protocol.frames.command import Command, encode

ALLOWED_MS = 1_000.0


@pytest.fixture
def observe() -> Iterator[StartCommand]:
    """Start `longpoll observe`; killed at the end if it still runs."""
    with commands("observe") as start:
        yield start


def address(text: str) -> tuple[str, int]:
    """HOST:PORT as a pair."""
    host, port = text.rsplit(":", 1)
    return host, int(port)


def ready_words(process: subprocess.Popen[str]) -> dict[str, str]:
    """The words of the ready line; of a broker the proxy's address."""
    assert process.stdout is not None
    first, *words = process.stdout.readline().split()
    assert first == "ready"
    return {name: value.rsplit("@", 1)[-1] for name, value in (word.split("=", 1) for word in words)}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "ctrl-c"])
def test_a_signal_ends_it_with_the_whole_history(
    number: signal.Signals, observe: StartCommand, start_broker: StartBroker, connect: Connect, tmp_path: Path
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
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")
    assert client.wait_closed()
    events = events_of(history)
    assert [event.event for event in events[-2:]] == ["connection_closed", "source_stopped"]
    result = judge([history], engine="local", wake_ms=ALLOWED_MS, late_ms=ALLOWED_MS)
    assert (result.verdict, result.requests) == ("valid", 2)


def test_a_killed_proxy_leaves_a_history_that_says_so(
    observe: StartCommand, start_broker: StartBroker, connect: Connect, tmp_path: Path
) -> None:
    """Everything but the last moment is there; a pull that was open then leaves the verdict unknown."""
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


def test_an_answer_arrives_after_the_client_said_that_it_sends_no_more(observe: StartCommand, tmp_path: Path) -> None:
    """Through the whole process, and the history has it: the pull was answered before its connection closed."""
    history = tmp_path / "history"
    asked = b"".join(encode(Command(RequestCode.PULL_MESSAGE, 1, ext_fields=pull_fields("T", 0, timeout_ms=500))))
    fields = {"suggestWhichBrokerId": "0", "nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0"}
    answer = b"".join(encode(Command(19, 1, CommandFlag.RESPONSE, ext_fields=fields)))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        broker_text = "{}:{}".format(*listening.getsockname())
        process = observe("--listen", "127.0.0.1:0", "--broker", broker_text, "--record", str(history))
        door = address(ready_words(process)["broker"])
        listening.settimeout(PATIENCE_S)
        for _handshake in range(HANDSHAKES):
            listening.accept()[0].close()
        with socket.create_connection(door, PATIENCE_S) as client:
            behind, _peer = listening.accept()
            with behind:
                client.sendall(asked)
                client.shutdown(socket.SHUT_WR)
                with behind.makefile("rb") as reader:
                    assert reader.read() == asked
                behind.sendall(answer)
            with client.makefile("rb") as reader:
                assert reader.read() == answer
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")
    told = [event.event for event in events_of(history)]
    assert told[-4:] == ["request_received", "answer_sent", "connection_closed", "source_stopped"]


def test_a_users_mistake_is_one_line_and_exit_2(observe: StartCommand, tmp_path: Path) -> None:
    """Nothing to observe, no address, a broker twice, a port in use, a history that cannot be written."""
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
        processes = [(observe(*options), text) for options, text in mistakes]
        for process, text in processes:
            out, err = process.communicate(timeout=60)
            assert (process.returncode, out) == (2, ""), err
            assert text in err.replace("\n", " ")
            assert "Traceback" not in err
