"""One valid request of each kind, which fuzzers and sweeps of field values then change."""

from __future__ import annotations

import json
import struct
from typing import Final

from model_tests.support.broker.raw_client import pull_fields, send_fields

from longpoll_protocol.codes import RequestCode

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
