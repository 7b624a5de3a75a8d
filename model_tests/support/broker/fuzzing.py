"""Invalid requests: every kind with wrong values, wrong bodies and wrong bytes.

A `Fuzzer` draws them from a seed. Its small pools of names bound what a correct broker stores.
"""

from __future__ import annotations

import json
import random
import struct
from typing import Final

from attrs import define, field
from model_tests.support.broker.raw_client import pull_fields, send_fields

from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import Command, Serialisation, encode

TOPICS: Final = (
    "F0", "F1", "F2", "%RETRY%FG0", "%DLQ%FG1", "SCHEDULE_TOPIC_XXXX", "TBW102", "no such topic", "", "../x",
)  # fmt: skip
GROUPS: Final = ("FG0", "FG1", "", "x" * 300, "%LMQ%a")
NUMBERS: Final = (
    "0", "1", "-1", "3", "31", "32", "1023", "2147483647", "2147483648", "-9223372036854775808", "1e3", "NaN", "",
)  # fmt: skip
TEXTS: Final = (
    "", "*", "||", "a || b", "TRUE", "idx > 3 AND (", "\x00", "\u4e3b\U0001f680", "x" * 70_000, "true", "null",
)  # fmt: skip
BODIES: Final = (b"", b"x", b"{}", b"[]", b"{", b"\xff" * 100, b'{"consumerDataSet":[null]}', b"[" * 5000, bytes(64))
CODES: Final = (*(int(code) for code in RequestCode), 0, -1, 9999, 70_000)

SPOILED_SHARE: Final = 0.002
"""How many frames have wrong bytes; most of those end their connection."""

_HEARTBEAT: Final = {
    "clientID": "fuzz",
    "producerDataSet": [{"groupName": "FP"}],
    "consumerDataSet": [
        {
            "groupName": "FG0",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [{"topic": "F0", "subString": "a", "subVersion": 1, "expressionType": "TAG"}],
        }
    ],
}
_LOCK: Final = {"consumerGroup": "FG0", "clientId": "fuzz", "mqSet": [{"topic": "F0", "brokerName": "b", "queueId": 0}]}
_GROUP: Final = {"groupName": "FG1", "consumeEnable": True, "retryQueueNums": 1}
_BATCH: Final = struct.pack(">iiiii", 23, 0, 0, 0, 1) + b"m" + struct.pack(">h", 0)
_PLACE: Final = {"topic": "F0", "queueId": "0"}
_TOPIC: Final = {"topic": "F1", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
_KEY: Final = {"topic": "F0", "key": "k", "maxNum": "9", "beginTimestamp": "0", "endTimestamp": "9"}
SEEDS: Final[tuple[tuple[int, dict[str, str], bytes], ...]] = (
    (RequestCode.SEND_MESSAGE_V2, send_fields("F0", properties="TAGS\x01a\x02KEYS\x01k\x02"), b"body"),
    (RequestCode.SEND_MESSAGE_V2, send_fields("F1", properties="DELAY\x0118\x02"), b"late"),
    (RequestCode.SEND_BATCH_MESSAGE, send_fields("F0") | {"m": "true"}, _BATCH),
    (RequestCode.PULL_MESSAGE, pull_fields("F0", 0), b""),
    (RequestCode.PULL_MESSAGE, pull_fields("F2", 0, timeout_ms=20), b""),
    (RequestCode.LITE_PULL_MESSAGE, pull_fields("F0", 1), b""),
    (RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "FG0"} | _PLACE, b""),
    (RequestCode.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "FG0", "commitOffset": "1"} | _PLACE, b""),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, _TOPIC, b""),
    (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": "1700000000000"} | _PLACE, b""),
    (RequestCode.GET_MAX_OFFSET, _PLACE, b""),
    (RequestCode.GET_MIN_OFFSET, _PLACE, b""),
    (RequestCode.GET_EARLIEST_MSG_STORETIME, _PLACE, b""),
    (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "0"}, b""),
    (RequestCode.QUERY_MESSAGE, _KEY, b""),
    (RequestCode.HEART_BEAT, {}, json.dumps(_HEARTBEAT).encode()),
    (RequestCode.UNREGISTER_CLIENT, {"clientID": "fuzz", "consumerGroup": "FG0"}, b""),
    (RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": "0", "group": "FG0", "delayLevel": "1"}, b""),
    (RequestCode.END_TRANSACTION, {"producerGroup": "FP", "tranStateTableOffset": "0", "commitLogOffset": "0",
                                   "commitOrRollback": "8"}, b""),
    (RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "FG0"}, b""),
    (RequestCode.LOCK_BATCH_MQ, {}, json.dumps(_LOCK).encode()),
    (RequestCode.UNLOCK_BATCH_MQ, {}, json.dumps(_LOCK).encode()),
    (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(_GROUP).encode()),
    (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "FG1"}, b""),
    (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "F2"}, b""),
    (RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, {"minBrokerId": "0"}, b""),
)  # fmt: skip


@define
class Fuzzer:
    """An endless sequence of frames, the same for the same seed."""

    seed: int
    spoiled: bool = False
    """A frame was spoiled since this was last lowered: its length may be wrong, so that it eats what follows."""
    _draw: random.Random = field(init=False)
    _opaque: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._draw = random.Random(self.seed)

    def frame(self) -> bytes:
        draw = self._draw
        code, fields, body = draw.choice(SEEDS)
        fields = dict(fields)
        for _ in range(draw.choice((0, 1, 1, 2, 3))):
            self._spoil(fields)
        if draw.random() < 0.15:
            body = self._spoiled_body(body)
        if draw.random() < 0.05:
            code = draw.choice(CODES)
        self._opaque += 1
        kind = Serialisation.ROCKETMQ if draw.random() < 0.3 and -(2**15) <= code < 2**15 else Serialisation.JSON
        short = {name: value[:30_000] for name, value in fields.items()} if kind is Serialisation.ROCKETMQ else fields
        flag = draw.choice((*[0] * 12, 1, 2, 3))
        content = b"".join(encode(Command(code, self._opaque, flag, ext_fields=short, body=body, serialisation=kind)))
        if draw.random() < SPOILED_SHARE:
            self.spoiled = True
            return self._spoiled_bytes(content)
        return content

    def _spoil(self, fields: dict[str, str]) -> None:
        draw = self._draw
        name = draw.choice((*fields, "unknown"))
        if draw.random() < 0.2:
            fields.pop(name, None)
            return
        if name in {"topic", "b", "originTopic"}:
            fields[name] = draw.choice(TOPICS)
        elif name in {"consumerGroup", "group", "groupName", "a", "producerGroup"}:
            fields[name] = draw.choice(GROUPS)
        else:
            fields[name] = draw.choice(draw.choice((NUMBERS, NUMBERS, TEXTS)))

    def _spoiled_body(self, body: bytes) -> bytes:
        draw = self._draw
        if not body or draw.random() < 0.5:
            return draw.choice(BODIES)
        return self._spoiled_bytes(body)

    def _spoiled_bytes(self, content: bytes) -> bytes:
        draw = self._draw
        changed = bytearray(content)
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(changed)) if changed else 0
            how = draw.random()
            if how < 0.6 and changed:
                changed[at] = draw.randrange(256)
            elif how < 0.8:
                del changed[at:]
            else:
                changed[at:at] = changed[at : at + draw.randrange(1, 64)]
        return bytes(changed)
