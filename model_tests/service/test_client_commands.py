"""`longpoll send` and `longpoll consume` against the embedded broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from longpoll.cli import main
from longpoll.commands.client import read_start
from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError

PATIENCE_S = 20.0


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[str]:
    with Broker.start(RealRuntime(), str(tmp_path / "store")) as broker:
        yield "{}:{}".format(*broker.name_server_address)


def run(name_server: str, *arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(main, [*arguments, "--name-server", name_server], input=stdin)


def lines(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_what_is_sent_is_consumed_with_every_field(name_server: str) -> None:
    (sent,) = lines(
        run(name_server, "send", "T", "h\u00e9llo", "--tag", "red", "--key", "k1 k2", "--property", "a=b=c", "--json")
    )
    assert (sent["topic"], sent["sent"], sent["wanted"]) == ("T", 1, 1)
    (found,) = lines(run(name_server, "consume", "T", "--group", "G", "--from", "first", "--count", "1", "--json"))
    assert (found["text"], found["tags"], found["keys"]) == ("h\u00e9llo", "red", "k1 k2")
    assert found["properties"]["a"] == "b=c"
    assert (found["msgId"], found["queueId"], found["queueOffset"]) == (
        sent["first"]["msg_id"],
        sent["first"]["queue"],
        sent["first"]["queue_offset"],
    )
    assert found["bornTimestamp"] <= found["storeTimestamp"] + 1000


def test_many_are_sent_from_standard_input_and_a_group_goes_on(name_server: str) -> None:
    """--count sends the body so often; a second consume of the group gets what the first left."""
    (sent,) = lines(run(name_server, "send", "T", "-", "--count", "30", "--queue", "0", "--json", stdin=b"\xff\x00"))
    assert sent["sent"] == 30
    first = lines(run(name_server, "consume", "T", "--group", "G", "--from", "first", "--count", "10", "--json"))
    rest = lines(run(name_server, "consume", "T", "--group", "G", "--count", "20", "--json"))
    assert [line["queueOffset"] for line in first + rest] == list(range(30))
    assert "text" not in first[0]
    assert first[0]["body"] == "/wA="


def test_tags_choose(name_server: str) -> None:
    for tag in ("red", "green", "blue"):
        run(name_server, "send", "T", tag, "--tag", tag, "--queue", "0")
    found = run(name_server, "consume", "T", "--group", "G", "--tag", "red || blue", "--from", "first", "--wait", "0.3")
    assert found.exit_code == 0
    assert [line.split()[-1] for line in found.stdout.splitlines()] == ["red", "blue"]


def test_control_characters_do_not_reach_a_terminal(name_server: str) -> None:
    run(name_server, "send", "T", "-", stdin=b"a\x1b[2J\nb")
    found = run(name_server, "consume", "T", "--group", "G", "--from", "first", "--count", "1")
    assert found.stdout.rstrip().endswith(r"a\x1b[2J\nb")


def test_too_few_messages_are_exit_3(name_server: str) -> None:
    run(name_server, "send", "T", "one")
    found = run(name_server, "consume", "T", "--group", "G", "--from", "first", "--count", "2", "--wait", "0.3")
    assert found.exit_code == 3
    assert found.stdout.rstrip().endswith("one")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("send", "../x", "b"), "not allowed"),
        (("send", "T", "b", "--property", "novalue"), "NAME=VALUE"),
        (("send", "T", "b", "--queue", "77"), "no queue 77"),
        (("consume", "Unknown", "--group", "G"), "unknown to the name server"),
        (("consume", "T", "--group", "G", "--from", "yesterday"), "--from"),
        (("consume", "T", "--group", "G", "--tag", "||"), "no tag"),
        (("consume", "T", "--group", "G", "--tag", "a", "--sql", "a = 1"), "together"),
        (("consume", "T", "--group", "x" * 300), "group"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(name_server: str, arguments: tuple[str, ...], words: str) -> None:
    run(name_server, "send", "T", "there")
    result = run(name_server, *arguments)
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_consume_cleanly_and_nothing_printed_comes_again(name_server: str, number: int) -> None:
    """Exit 0, no traceback; the printed messages are committed, the others come to the next member."""
    run(name_server, "send", "T", "x", "--count", "5", "--queue", "0")
    code = "from longpoll.cli import main; main()"
    arguments = ["consume", "T", "--group", "G", "--from", "first", "--name-server", name_server, "--json"]
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as consuming:
        assert consuming.stdout is not None
        found = [json.loads(consuming.stdout.readline()) for _number in range(5)]
        os.kill(consuming.pid, number)
        _rest, said = consuming.communicate(timeout=PATIENCE_S)
    assert consuming.returncode == 0
    assert "Traceback" not in said
    assert [line["queueOffset"] for line in found] == [0, 1, 2, 3, 4]
    assert lines(run(name_server, "consume", "T", "--group", "G", "--wait", "0.3", "--json")) == []


def test_where_to_begin_is_read() -> None:
    assert read_start(None) == "stored"
    assert read_start("first") == "first"
    assert read_start("1700000000000") == datetime.fromtimestamp(1.7e9, UTC)
    assert read_start("2023-11-14T22:13:20Z") == datetime.fromtimestamp(1.7e9, UTC)
    assert read_start("2023-11-14T23:13:20+01:00") == datetime.fromtimestamp(1.7e9, UTC)
    with pytest.raises(ConfigError):
        read_start("stored")


def test_consume_filters_by_sql(tmp_path: Path) -> None:
    """Only what matches is printed; a broker that does not filter by properties says so, in one line."""
    config = BrokerConfig(property_filter=True)
    with Broker.start(RealRuntime(), str(tmp_path / "store"), config=config) as broker:
        names = "{}:{}".format(*broker.name_server_address)
        for size in ("5", "50", "x", "500"):
            run(names, "send", "T", size, "--property", f"size={size}", "--queue", "0")
        asked = ("consume", "T", "--group", "G", "--sql", "size > 10", "--from", "first", "--count", "2", "--json")
        assert [each["text"] for each in lines(run(names, *asked))] == ["50", "500"]
        bad = run(names, "consume", "T", "--group", "G", "--sql", "size >")
        assert bad.exit_code == 2, bad.output
        assert "cannot continue at its end" in " ".join(bad.stderr.split())
    with Broker.start(RealRuntime(), str(tmp_path / "store")) as broker:
        names = "{}:{}".format(*broker.name_server_address)
        refused = run(names, *asked)
        assert refused.exit_code == 2, refused.output
        assert "does not support consumer to filter message by SQL92" in " ".join(refused.stderr.split())
