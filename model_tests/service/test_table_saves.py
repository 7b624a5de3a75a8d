"""What a client changes of topics and groups is on the disk before it is told so, whatever happens right after."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.broker.brokers import SMALL_STORE, Connect, StartBroker
from model_tests.support.broker.raw_client import RawClient, send_message
from model_tests.support.service import answer_of, served_two

from longpoll_broker.shared import table_chunks
from longpoll_broker.upkeep import config_files, table_saves
from longpoll_protocol.codes import RequestCode
from longpoll_runtime.files import RealFiles

NEVER_MS = 3_600_000
TOPIC = {
    "topic": "Made", "defaultTopic": "TBW102", "readQueueNums": "3", "writeQueueNums": "2", "perm": "4",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}  # fmt: skip
GROUP = json.dumps({"groupName": "Made", "consumeEnable": False}).encode()


def table_of(store: Path, file: str, key: str) -> dict[str, object]:
    table: dict[str, object] = json.loads((store / "config" / file).read_text())[key]
    return table


def test_a_deletion_that_was_not_saved_is_saved_before_the_next_answer(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = start_broker(store_config=evolve(SMALL_STORE, flush_interval_ms=NEVER_MS))
    client, store = connect(broker.address), Path(broker.store.directory)
    assert client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC).code == 0
    broker.handler.shared.offsets.commit("Made", "G", 0, 5)
    files, write_atomic = broker.runtime.files, RealFiles.write_atomic
    fails = [True]

    def write(own: RealFiles, path: str, content: bytes) -> None:
        if path.endswith("consumerOffset.json") and fails[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        write_atomic(own, path, content)

    (store / "config" / "consumerOffset.json").write_text('{"offsetTable": {"Made@G": {"0": 5}}}')
    monkeypatch.setattr(type(files), "write_atomic", write)
    assert client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Made"}).code == 1
    fails[0] = False
    assert client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Made"}).code == 0
    assert table_of(store, "consumerOffset.json", "offsetTable") == {}


def change(client: RawClient, killed: Path, store: Path) -> list[tuple[list[str], list[str]]]:
    """The topics and groups of the directory as a kill leaves it after each change was answered."""
    found = []
    for code, fields, body in (
        (RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC, b""),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, GROUP),
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Made"}, b""),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "Made"}, b""),
    ):
        assert client.call(code, fields, body).code == 0
        copy = killed / str(int(code))
        (store / "config").mkdir(exist_ok=True)
        shutil.copytree(store / "config", copy, dirs_exist_ok=True)
        names = []
        for file, key in (("topics.json", "topicConfigTable"), ("subscriptionGroup.json", "subscriptionGroupTable")):
            table = json.loads((copy / file).read_text())[key] if (copy / file).exists() else {}
            names.append([name for name in table if name == "Made"])
        found.append((names[0], names[1]))
    return found


@pytest.mark.parametrize("waiting_count_max", [0, table_saves.WAITING_COUNT_MAX])
def test_a_change_that_is_answered_outlives_a_kill(
    start_broker: StartBroker, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting_count_max: int
) -> None:
    monkeypatch.setattr(table_saves, "WAITING_COUNT_MAX", waiting_count_max)
    rare = evolve(SMALL_STORE, flush_interval_ms=NEVER_MS)
    client = connect(start_broker(store_config=rare).address)
    saved = change(client, tmp_path / "killed", tmp_path / "store")
    assert saved == [(["Made"], []), (["Made"], ["Made"]), ([], ["Made"]), ([], [])]
    assert json.loads((tmp_path / "killed" / "17" / "topics.json").read_text())["topicConfigTable"]["Made"]["perm"] == 4


def test_a_failed_save_is_reported(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, admin, bystander = served_two(
        start_broker, connect, store_config=evolve(SMALL_STORE, flush_interval_ms=NEVER_MS)
    )
    stands, goes_on = broker.runtime.event(), broker.runtime.event()
    write_atomic = RealFiles.write_atomic

    def fails(files: RealFiles, path: str, content: bytes) -> None:
        if path.endswith("topics.json") and not goes_on.is_set():
            stands.set()
            goes_on.wait()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        write_atomic(files, path, content)

    monkeypatch.setattr(RealFiles, "write_atomic", fails)
    asked = admin.send(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)
    try:
        assert stands.wait(60.0)
        assert send_message(bystander, "Other", b"meanwhile") == 0
    finally:
        goes_on.set()
    refused = answer_of(admin, asked)
    assert refused.code == 1
    assert "could not be saved yet: OSError: [Errno 28]" in str(refused.remark)
    assert admin.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, GROUP).code == 0
    table = json.loads(Path(broker.store.directory, "config", "topics.json").read_text())["topicConfigTable"]
    assert table["Made"]["readQueueNums"] == 3


class ChangedMeanwhile:
    """A table that somebody changes right after its flag was looked at."""

    def __init__(self) -> None:
        self.stands = False

    @property
    def changed(self) -> bool:
        """Whether it has changed; from then on it has."""
        stood, self.stands = self.stands, True
        return stood

    @changed.setter
    def changed(self, value: bool) -> None:
        self.stands = value


def test_a_change_while_the_flag_is_looked_at_is_saved_the_next_time() -> None:
    table = ChangedMeanwhile()
    with config_files._taken(table) as has_changed:  # type: ignore[arg-type] # what is asked of a table it has
        assert not has_changed
    assert table.stands


@given(
    st.dictionaries(
        st.text(),
        st.dictionaries(st.text(), st.dictionaries(st.integers(0, 99), st.integers(-(2**63), 2**63 - 1))),
        min_size=1,
    )
)
def test_files_are_put_together_in_parts(content: dict[str, dict[str, dict[int, int]]]) -> None:
    """They have the text of one piece."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_chunks, "PART_COUNT", 4)
        assert config_files._text(content) == msgspec.json.format(msgspec.json.encode(content), indent=1)
