"""More queues than a process may have open files or maps: served, and opened again, under that limit."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from longpoll_broker.store.queues.queue_table import OTHER_MAPS
from longpoll_broker.testing.brokers import Connect, StartBroker
from longpoll_broker.testing.raw_client import pull_fields, records_of, send_message
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_runtime.files import RealFiles, RealMappedFile

QUEUE_COUNT = 200
LIMIT = 100
"""Open files: what a broker, its sockets and its threads need, and far fewer than there are queues."""
SCRIPT = f"""
import resource, sys
from longpoll_broker.broker import Broker
from longpoll_broker.testing.brokers import SMALL_STORE
from longpoll_broker.testing.raw_client import RawClient, pull_fields, records_of, send_message
from longpoll_protocol.codes import RequestCode
from longpoll_runtime.real import RealRuntime

resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT}, {LIMIT}))
fields = {{"topic": "Wide", "readQueueNums": "{QUEUE_COUNT}", "writeQueueNums": "{QUEUE_COUNT}", "perm": "6",
          "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "defaultTopic": "TBW102"}}
for life in range(2):
    with Broker.start(RealRuntime(), sys.argv[1], store_config=SMALL_STORE) as broker:
        with RawClient(broker.address) as client:
            if life == 0:
                assert client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields).code == 0
                for queue_id in range({QUEUE_COUNT}):
                    assert send_message(client, "Wide", queue_id=queue_id) is not None
            send_message(client, "Other")
            seen = sum(len(records_of(client.call(RequestCode.PULL_MESSAGE, pull_fields("Wide", 0, queue_id=n))))
                       for n in range({QUEUE_COUNT}))
            other = client.call(RequestCode.PULL_MESSAGE, pull_fields("Other", life))
            print(seen, len(records_of(other)))
"""


def test_a_topic_of_more_queues_than_open_files(tmp_path: Path) -> None:
    """Every message of it is visible, so is another topic's, and the broker starts again on that store."""
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "store")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.stdout.splitlines() == [f"{QUEUE_COUNT} 1", f"{QUEUE_COUNT} 1"], ended.stderr[-2000:]


def test_a_pull_without_a_map_is_told_and_nothing_is_passed_over(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the queue's file cannot be opened a pull is answered 1, others are served, and then it gets its message."""
    monkeypatch.setattr(RealFiles, "maps_max", lambda _self: OTHER_MAPS + 1)
    broker = start_broker()
    client, other = connect(broker.address), connect(broker.address)
    for queue_id in range(3):
        send_message(client, "T", queue_id=queue_id)
        client.call(RequestCode.PULL_MESSAGE, pull_fields("T", 0, queue_id=queue_id))
    map_file = RealFiles._map

    def refuse(files: RealFiles, path: str, size: int, *, writable: bool, create: bool) -> RealMappedFile:
        if "/consumequeue/T/" in path and not create:
            raise OSError(errno.EMFILE, "too many open files", path)
        return map_file(files, path, size, writable=writable, create=create)

    broker.store.flush_queues()
    with monkeypatch.context() as patch:
        patch.setattr(RealFiles, "_map", refuse)
        codes = [
            client.call(RequestCode.PULL_MESSAGE, pull_fields("T", 0, queue_id=queue_id)).code for queue_id in range(3)
        ]
        assert codes.count(ResponseCode.SYSTEM_ERROR) >= 2
        # One of the three queues may have the map there is.
        assert set(codes) <= {ResponseCode.SYSTEM_ERROR, ResponseCode.SUCCESS}
        send_message(other, "Fresh")
        assert len(records_of(other.call(RequestCode.PULL_MESSAGE, pull_fields("Fresh", 0)))) == 1
    for queue_id in range(3):
        assert len(records_of(client.call(RequestCode.PULL_MESSAGE, pull_fields("T", 0, queue_id=queue_id)))) == 1
