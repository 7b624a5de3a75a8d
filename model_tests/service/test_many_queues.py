"""A topic of more queues than a process may have open files: served, and opened again, under that limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert ended.stdout.splitlines() == [f"{QUEUE_COUNT} 1", f"{QUEUE_COUNT} 1"], ended.stderr[-2000:]
