"""Whatever is sent, the store stays whole: after a crash every queue has what it had, and nobody else's is touched.

A world is drawn from a seed: a policy, settings, and sixty sends, batches, messages sent back and ends of transactions
with flags, properties and names that a well-behaved client does not send; between them topics are deleted and changed,
and groups. Then the broker's files are copied as they
are, which is what a killed process leaves, and the copy is opened.
"""

from __future__ import annotations

import random
import shutil
import struct
from pathlib import Path
from typing import Final

import attrs
import pytest
from model_tests.support.broker.brokers import SMALL_STORE, wait_until
from model_tests.support.broker.raw_client import RawClient, send_fields
from model_tests.support.broker.stores import read_all

from longpoll_broker.broker import Broker
from longpoll_broker.store.log import commit_log
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.verify import verify
from longpoll_protocol.codes import RequestCode
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, STRICT

REQUESTS: Final = 60
CHANGED_SHARE: Final = 0.12
"""How many requests change topics or groups."""
NAMES: Final = (
    "DELAY", "TRAN_MSG", "PGROUP", "REAL_TOPIC", "REAL_QID", "RETRY_TOPIC", "KEYS", "UNIQ_KEY", "WAIT", "CLUSTER",
    "TAGS", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "INNER_NUM", "ORIGIN_MESSAGE_ID", "MSG_REGION",
    "TRACE_ON", "__transactionId__", "a\0", "\0", "", "x" * 3000, "ü",
)  # fmt: skip
VALUES: Final = (
    "true", "1", "2", "18", "-1", "T", "U", "../x", "a", "a b c", "%LMQ%a", "%LMQ%a,%LMQ%b", "5", "0,0", "\0", "",
    "\0" * 600, "x" * 5000, "ü€", "99999999999999999999",
)  # fmt: skip
ENDS: Final = ("", "", "broken", "\x01", "\x02")
TOPICS: Final = ("T", "U", "%RETRY%G", "%DLQ%G", "%LMQ%a", "BenchmarkTest")
FLAGS: Final = (0, 0, 0, 1, 4, 8, 12, 16, 32, 48, 64, 128, -1, 2**31 - 1)

Queues = dict[tuple[str, int], list[bytes]]


def send_any(client: RawClient, draw: random.Random, log_end: int) -> None:
    """One request of some kind; it must be answered, with whatever."""
    count = draw.choice((0, 1, 1, 2, 3))
    pairs = (f"{draw.choice(NAMES)}\x01{draw.choice(VALUES)}\x02" for _ in range(count))
    properties = "".join(pairs) + draw.choice(ENDS)
    flag = {"f": str(draw.choice(FLAGS)), "j": draw.choice(("0", "-5", "99"))}
    kind = draw.random()
    if kind < 0.6:
        fields = send_fields(draw.choice(TOPICS), 0, properties) | flag
        client.call(RequestCode.SEND_MESSAGE_V2, fields, draw.randbytes(draw.choice((0, 1, 50))))
    elif kind < 0.85:
        fields = send_fields(draw.choice(TOPICS), 0, draw.choice(("", properties))) | flag | {"m": "true"}
        raw = properties.encode()[:30_000]
        parts = b""
        for _ in range(draw.randrange(1, 4)):
            body = draw.randbytes(draw.randrange(3))
            parts += struct.pack(">iiiii", 22 + len(raw) + len(body), 0, 0, 7, len(body)) + body
            parts += struct.pack(">h", len(raw)) + raw
        client.call(RequestCode.SEND_BATCH_MESSAGE, fields, parts)
    elif kind < 0.95:
        place = {"offset": str(draw.randrange(log_end + 10)), "group": "G"}
        client.call(RequestCode.CONSUMER_SEND_MSG_BACK, place | {"delayLevel": draw.choice(("0", "-1", "1"))})
    else:
        place = {"producerGroup": draw.choice(VALUES[:3]), "tranStateTableOffset": "0", "commitOrRollback": "8"}
        client.call(RequestCode.END_TRANSACTION, place | {"commitLogOffset": str(draw.randrange(log_end + 1))})


def change_any(client: RawClient, draw: random.Random) -> None:
    """Delete or change a topic, or change the group that messages are sent back to."""
    topic, kind = draw.choice(TOPICS), draw.random()
    if kind < 0.6:
        client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
    elif kind < 0.85:
        counts = {"readQueueNums": draw.choice("012"), "writeQueueNums": draw.choice("012")}
        client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": topic, "perm": draw.choice("0246")} | counts)
    else:
        group = b'{"groupName":"G","retryQueueNums":%d,"retryMaxTimes":%d}' % (
            draw.randrange(-1, 3),
            draw.randrange(-1, 3),
        )
        client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group)


def listed(store: MessageStore) -> Queues:
    return {(topic, queue_id): read_all(store, topic, queue_id) for topic, queue_id in store.queues()}


def problems(directory: Path) -> list[str]:
    """What verifying a closed store finds."""
    return [f"{problem.file}: {problem.found}" for problem in verify(RealRuntime().files, str(directory)).problems]


def harm(directory: Path, seed: int) -> list[str]:
    """What a world's requests have done to its store, one line each."""
    draw = random.Random(seed)
    config = attrs.evolve(
        SMALL_STORE,
        multi_dispatch=draw.random() < 0.5,
        light_queues=draw.random() < 0.5,
        index_slot_count=50,
        index_entry_count=200,
    )
    policy = draw.choice((STRICT, ROCKETMQ_4_9, ROCKETMQ_5))
    first, copied = directory / f"{seed}", directory / f"{seed}-killed"
    with (
        Broker.start(RealRuntime(), str(first), policy=policy, store_config=config) as broker,
        RawClient(broker.address) as client,
    ):
        for _ in range(REQUESTS):
            if draw.random() < CHANGED_SHARE:
                change_any(client, draw)
            else:
                send_any(client, draw, broker.store.log_end)
        wait_until(lambda: broker.store.dispatched_end == broker.store.log_end)
        shutil.copytree(first, copied)
        before = listed(broker.store)
    with Broker.start(RealRuntime(), str(copied), policy=policy, store_config=config) as broker:
        after = listed(broker.store)
    lost = [
        f"{queue} is not what it was" for queue in before if after.get(queue, [])[: len(before[queue])] != before[queue]
    ]
    new = [f"{queue} is new" for queue in after.keys() - before.keys()]
    return [*lost, *new, *problems(first), *problems(copied)]


def test_a_store_stays_whole_whatever_is_sent(tmp_path: Path) -> None:
    """One world, with further and light queues."""
    assert harm(tmp_path, 16) == []


@pytest.mark.long
def test_many_stores_stay_whole_whatever_is_sent(tmp_path: Path) -> None:
    assert {seed: found for seed in range(60) if (found := harm(tmp_path, seed))} == {}


def test_planted_flags_that_are_believed_do_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_log, "HOST_BITS", 0)

    assert any("is not what it was" in line for line in harm(tmp_path, 13))
