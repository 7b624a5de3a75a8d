"""`longpoll store`: what it prints, what it picks, how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from click.testing import CliRunner, Result

from longpoll.cli import main
from longpoll_broker.testing.stores import SMALL, message, mixed_messages, open_store, put_and_dispatch
from longpoll_protocol.log_record import SCHEDULE_TOPIC


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """A closed store of forty messages in two topics."""
    store = open_store(tmp_path / "store")
    put_and_dispatch(store, mixed_messages(40))
    store.close()
    return str(tmp_path / "store")


def run(*arguments: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(main, ["store", *arguments])


def lines(result: Result) -> list[dict[str, Any]]:
    """Its NDJSON."""
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_show_picks(directory: str) -> None:
    """Topic, queue, first offset and count choose what is shown, in queue order."""
    shown = lines(run("show", directory, "--topic", "Orders", "--queue", "1", "--from", "3", "--count", "4", "--json"))
    assert [(line["topic"], line["queueId"], line["queueOffset"]) for line in shown] == [
        ("Orders", 1, offset) for offset in range(3, 7)
    ]
    assert len(lines(run("show", directory, "--json"))) == 40
    human = run("show", directory)
    assert (human.exit_code, "Orders" in human.stdout) == (0, True)
    assert "queueOffset=3" in run("show", directory, "--topic", "Orders", "--queue", "1", "--from", "3").stdout


def test_show_finds_by_key_id_and_time(directory: str) -> None:
    """A message is found by one of its keys, by the id that its sender got, and by when it was stored."""
    everything = lines(run("show", directory, "--json"))
    (found,) = lines(run("show", directory, "--key", "key13", "--json"))
    assert found["properties"]["KEYS"] == "key13"
    assert lines(run("show", directory, "--id", found["msgId"].lower(), "--json")) == [found]
    assert "KEYS" in run("show", directory, "--id", found["msgId"]).stdout
    times = sorted(line["storeTimestamp"] for line in everything)
    first, last = str(times[0]), str(times[-1])
    assert lines(run("show", directory, "--stored-from", first, "--stored-to", last, "--json")) == everything
    assert lines(run("show", directory, "--stored-to", str(times[0] - 1), "--json")) == []
    assert lines(run("show", directory, "--stored-from", str(times[-1] + 1), "--json")) == []
    assert lines(run("show", directory, "--key", "key", "--json")) == []


def test_dump_picks(directory: str) -> None:
    """The dump is in log order; what it holds is chosen by --what, and by topic, queue and offset."""
    records = lines(run("dump", directory, "--json"))
    assert [line["physicalOffset"] for line in records] == sorted(line["physicalOffset"] for line in records)
    assert {line["kind"] for line in records} == {"record"}
    units = lines(run("dump", directory, "--what", "units", "--topic", "Orders", "--queue", "2", "--json"))
    assert [line["queueOffset"] for line in units] == list(range(len(units)))
    everything = lines(run("dump", directory, "--what", "all", "--json"))
    assert {line["kind"] for line in everything} == {"record", "blank", "unit"}
    assert len(lines(run("dump", directory, "--count", "5", "--json"))) == 5
    assert "\x01" not in run("dump", directory).stdout


@pytest.mark.parametrize("extended", [False, True])
def test_a_delayed_message_is_shown_with_its_brokers_time(tmp_path: Path, extended: bool) -> None:
    """When it is due stands in its unit, and not in RocketMQ's table of levels; but of what has none, or elsewhere."""
    config = evolve(SMALL, delay_levels="7s 11m", extended_queues=extended, extended_file_size=200)
    store = open_store(tmp_path, config)
    delayed = [message(SCHEDULE_TOPIC, level - 1, properties={"DELAY": str(level)}) for level in (1, 2)]
    put_and_dispatch(store, [*delayed, message(tag="A")])
    store.put(delayed[0])
    store.abandon()
    shown, dumped = lines(run("show", str(tmp_path), "--json")), lines(run("dump", str(tmp_path), "--json"))
    waits = {line["physicalOffset"]: line["tagsCode"] - line["storeTimestamp"] for line in dumped[:2]}
    levels_ms = (1_000, 5_000) if extended else (7_000, 660_000)
    assert tuple(waits.values()) == levels_ms
    assert {line["physicalOffset"]: line["tagsCode"] for line in dumped[:3]} == {
        line["physicalOffset"]: line["tagsCode"] for line in shown
    }
    assert dumped[2]["tagsCode"] == 65
    # Nobody has seen the last one yet.
    assert dumped[3]["tagsCode"] - dumped[3]["storeTimestamp"] == 1_000


def test_damage_is_named_and_passed_by(directory: str) -> None:
    """A damaged record is named on stderr with file and byte, the others are dumped, and the exit code is 1."""
    victim = lines(run("dump", directory, "--json"))[10]
    path = Path(directory) / "commitlog" / f"{victim['physicalOffset'] // 2048 * 2048:020d}"
    content = bytearray(path.read_bytes())
    content[victim["physicalOffset"] % 2048 + 6] ^= 1
    path.write_bytes(content)
    dumped = run("dump", directory, "--json")
    assert (dumped.exit_code, len(lines(dumped))) == (1, 39)
    assert f"{path.name}, byte {victim['physicalOffset'] % 2048 + 4}" in dumped.stderr
    shown = lines(run("show", directory, "--topic", victim["topic"], "--queue", str(victim["queueId"]), "--json"))
    assert [line["queueOffset"] for line in shown if line["kind"] == "damage"] == [victim["queueOffset"]]


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    """A directory that is not there, is no store or is a file: one line, exit 2, no traceback."""
    (tmp_path / "file").touch()
    for target in (tmp_path / "none", tmp_path, tmp_path / "file"):
        result = run("verify", str(target), "--json")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("longpoll: ")


def test_an_open_store_can_be_read(tmp_path: Path) -> None:
    """A store that a broker has open is read as it stands: what is not dispatched yet is a tail."""
    store = open_store(tmp_path)
    put_and_dispatch(store, mixed_messages(5))
    store.put(message("Orders", 1))
    result = run("verify", str(tmp_path), "--json")
    verdict = json.loads(result.stdout)
    assert (result.exit_code, verdict["messages"]) == (0, 6)
    assert [problem["kind"] for problem in verdict["problems"]] == ["tail"]
    store.close()
    assert json.loads(run("verify", str(tmp_path), "--json").stdout)["problems"] == []
