"""Tables on the disk that cannot be used: the one before is, or the start says what to do in a sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from longpoll.cli import main
from longpoll_broker.shared.offsets import Offsets
from longpoll_broker.shared.timer_offsets import DelayOffsets
from longpoll_broker.shared.topics import Groups, Topics
from longpoll_broker.upkeep.config_files import DELAYS, GROUPS, OFFSETS, TIMERS, TOPICS, ConfigFiles
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError

SOUND: dict[str, dict[str, Any]] = {
    TOPICS: {"topicConfigTable": {"T": {"topicName": "T", "readQueueNums": 3}}},
    GROUPS: {"subscriptionGroupTable": {"G": {"groupName": "G", "retryQueueNums": 3}}},
    OFFSETS: {"offsetTable": {"T@G": {"0": 3}}},
    DELAYS: {"offsetTable": {"1": 3}},
    TIMERS: {"offsetTable": {"first": 3, "read": 3, "deliveredMs": 3}},
}
WRONG_ROWS: dict[str, list[Any]] = {
    TOPICS: [7, {"topicName": "T", "readQueueNums": "x"}, {"topicName": "T", "readQueueNums": 99_999}],
    GROUPS: [7, {"groupName": 7}],
    OFFSETS: [7, {"0": 2**64}, {"x": 1}],
    DELAYS: ["x", 2**64],
    TIMERS: ["x", {}],
}
DAMAGES = [
    (name, json.dumps({key: dict.fromkeys(table, row)}))
    for name, content in SOUND.items()
    for key, table in content.items()
    for row in WRONG_ROWS[name]
] + [(name, text) for name in SOUND for text in ("", "[]", "{}", '{"other":{}}')]


def loaded(directory: Path) -> ConfigFiles:
    """The tables of a directory."""
    offsets, delays = Offsets(), DelayOffsets()
    files = ConfigFiles(RealRuntime(), str(directory), Topics(), Groups(), offsets, delays)
    files.load()
    return files


def found(files: ConfigFiles) -> list[int]:
    """What every sound table has 3 of."""
    topic, group = files.topics.get("T"), files.groups.by_name.get("G")
    return [
        0 if topic is None else topic.read_queue_nums,
        0 if group is None else group.retry_queue_nums,
        files.offsets.query("T", "G", 0) or 0,
        files.delays.by_level.get(1, 0),
        files.timers.read,
    ]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Sound tables, each with a `.bak` like it."""
    for name, content in SOUND.items():
        (tmp_path / name).write_text(json.dumps(content))
        (tmp_path / f"{name}.bak").write_text(json.dumps(content))
    return tmp_path


@pytest.mark.parametrize(("name", "text"), DAMAGES, ids=lambda value: value[:70])
def test_the_one_before_is_used_where_a_table_cannot_be(
    config: Path, caplog: pytest.LogCaptureFixture, name: str, text: str
) -> None:
    """Whatever is wrong with it; a line in the log names it, and the next save writes it anew."""
    (config / name).write_text(text)
    files = loaded(config)
    assert found(files) == [3] * len(SOUND)
    assert f"{config / name} " in caplog.text
    files.save()
    (config / f"{name}.bak").unlink()
    assert found(loaded(config)) == [3] * len(SOUND)


@pytest.mark.parametrize("name", SOUND)
def test_a_table_that_is_nowhere_in_its_file_is_reported(
    config: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """Without a `.bak` it is empty; one that cannot be read is an error."""
    (config / name).write_text("{}")
    (config / f"{name}.bak").unlink()
    assert sorted(found(loaded(config))) == [0, 3, 3, 3, 3]
    assert f"{config / name} holds no table" in caplog.text
    (config / f"{name}.bak").write_text("{")
    with pytest.raises(ConfigError, match=r"\.bak cannot be read"):
        loaded(config)


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.timeout(20)
def test_a_fifo_is_no_table(config: Path, name: str) -> None:
    """Nobody waits for who writes to it; the one before is used."""
    (config / name).unlink()
    os.mkfifo(config / name)
    files = loaded(config)
    assert found(files) == [3] * len(SOUND)
    files.save()
    assert (config / name).is_file()
    os.mkfifo(config / f"{TOPICS}.tmp")
    files.topics.changed = True
    with pytest.raises(OSError, match=r"\.tmp"):
        files.save()


@pytest.mark.parametrize(
    "path",
    ["config/topics.json", "checkpoint", "commitlog/" + "0" * 20, "consumequeue/T/0/" + "0" * 20, "deletedTopics.json"],
)
@pytest.mark.timeout(20)
def test_a_fifo_in_a_stores_file_gets_one_sentence(tmp_path: Path, path: str) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(tmp_path / path)
    given = ["serve", "--store", str(tmp_path), "--listen", "127.0.0.1:0", "--name-server", "127.0.0.1:0"]
    result = CliRunner().invoke(main, given)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert path.rpartition("/")[2] in result.output


def test_an_empty_path_is_no_store(tmp_path: Path) -> None:
    """On the command line and in a file; it would be the current directory."""
    result = CliRunner().invoke(main, ["serve", "--store", ""])
    assert (result.exit_code, "the path is empty" in result.output) == (2, True)
    conf = tmp_path / "broker.conf"
    for key in ("storePathRootDir", "storePathCommitLog", "storePathConsumeQueue", "storePathIndex"):
        conf.write_text(f"{key}=\n")
        result = CliRunner().invoke(main, ["serve", "--config", str(conf)])
        assert (result.exit_code, f"{key} cannot be ''" in result.output) == (2, True)
