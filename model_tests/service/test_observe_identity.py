"""A real broker that is recorded from outside is valid; faults put into what was recorded are found."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

import msgspec
from model_tests.service.observed import events_of, observing
from model_tests.support.broker.brokers import Connect, StartBroker
from model_tests.support.broker.raw_client import RawClient, pull_fields, send_fields

from longpoll_judge.contract.result import Result
from longpoll_judge.rules.messages import OF_MESSAGES, OF_POLLS
from longpoll_judge.run.pipeline import judge
from longpoll_observe.events import id_of
from longpoll_protocol.codes import RequestCode
from longpoll_spec.history import META_FILE, Event

ALLOWED_MS: Final = 5_000.0
Fields = dict[str, Any]
Where = tuple[str, str]
"""An event, and the unique id of its message, or of one of its messages."""
TWICE: Final = (("answer_sent", "b"), {"ids": [id_of("a"), id_of("a")]})
FAULTS: Final[dict[str, tuple[list[tuple[Where, Fields]], str]]] = {
    "message.one_value": ([(("message_acknowledged", "a"), {"bodies": [1]})], "violated"),
    "message.stored.once": ([TWICE], "unknown"),
    "message.stored.again": ([(("request_received", "b"), {"ids": [id_of("a")]}), TWICE], "observed"),
    "message.committed": ([(("end", "c"), {"transaction": "rollback"})], "violated"),
    "message.early": ([(("request_received", "d"), {"delay_level": 3})], "unknown"),
    "message.late": ([(("answer_sent", "d"), {"later_ns": 8 * 10**9})], "observed"),
    "message.skipped": ([(("pull", "d"), {"offset": 4})], "observed"),
    "message.read_back": ([(("pull", "d"), {"offset": 1})], "observed"),
    "message.unseen": ([(("message_acknowledged", "b"), {"queue_offset": 7})], "observed"),
}
"""Of each analysis changes of events that were recorded, and how certain it is of that."""


def sent(client: RawClient, unique: str, properties: str = "", **fields: str) -> dict[str, str]:
    """Send one message; the fields of the answer."""
    asked = send_fields("T", 0, f"UNIQ_KEY\x01{unique}\x02TAGS\x01red\x02{properties}") | fields
    answer = client.call(RequestCode.SEND_MESSAGE_V2, asked, unique.encode())
    assert answer.code == 0, answer.remark
    assert answer.ext_fields is not None
    return answer.ext_fields


def pulled(client: RawClient, offset: int) -> int:
    """Pull until there is something; the next offset."""
    answer = client.call(RequestCode.PULL_MESSAGE, pull_fields("T", offset, timeout_ms=10_000))
    assert (answer.code, answer.ext_fields is None) == (0, False)
    return int((answer.ext_fields or {})["nextBeginOffset"])


def record(client: RawClient) -> None:
    """Two plain messages, one that is committed, one that is rolled back, and one that is delayed."""
    sent(client, "a")
    sent(client, "b")
    assert pulled(client, 0) == 2
    for unique, outcome in (("c", 8), ("e", 12)):
        stored = sent(client, unique, "TRAN_MSG\x01true\x02PGROUP\x01P\x02", f="4")
        ends = {"producerGroup": "P", "tranStateTableOffset": stored["queueOffset"], "msgId": unique}
        place = {"commitLogOffset": str(int(stored["msgId"][-16:], 16)), "commitOrRollback": str(outcome)}
        assert client.call(RequestCode.END_TRANSACTION, ends | place).code == 0
    assert pulled(client, 2) == 3
    sent(client, "d", "DELAY\x011\x02")
    assert pulled(client, 3) == 4


def changed(events: list[Event], where: Where, fields: Fields) -> list[Event]:
    """The events, one of them with other fields, or it and all after it later.

    The pull that got a message is found by its answer.
    """
    kind, own = where[0], id_of(where[1])
    if kind == "pull":
        (request,) = (one.request for one in events if one.event == "answer_sent" and own in one.ids)
        at = next(place for place, one in enumerate(events) if one.request == request)
    else:
        code = {"end": 37, "request_received": 310}.get(kind, -1)
        name = "request_received" if kind == "end" else kind
        at = next(
            place for place, one in enumerate(events) if one.event == name and own in one.ids and code in {-1, one.code}
        )
    if later_ns := fields.get("later_ns"):
        moved = [
            msgspec.structs.replace(one, after_ns=one.after_ns + later_ns, before_ns=one.before_ns + later_ns)
            for one in events[at:]
        ]
        return [*events[:at], *moved]
    return [*events[:at], msgspec.structs.replace(events[at], **fields), *events[at + 1 :]]


def judged(directory: Path, meta: Path, events: list[Event]) -> Result:
    directory.mkdir()
    shutil.copy(meta, directory)
    (directory / "part-0.ndjson").write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in events))
    return judge([directory], engine="local", wake_ms=ALLOWED_MS, late_ms=ALLOWED_MS)


def test_faults_of_messages_are_found_in_a_recording(
    start_broker: StartBroker, connect: Connect, tmp_path: Path
) -> None:
    """What was recorded is valid and without observations; each fault is found by its analysis."""
    with observing(start_broker().address, tmp_path / "history") as proxy:
        (door,) = proxy.doors.values()
        record(connect(door))
    events, meta = events_of(tmp_path / "history"), tmp_path / "history" / META_FILE
    clean = judged(tmp_path / "clean", meta, events)
    assert (clean.verdict, clean.findings, clean.gaps, clean.observations) == ("valid", [], [], [])
    assert {id_of(name) for name in "abcd"} <= {each for one in events for each in one.ids if one.offsets}
    assert FAULTS.keys() == {*OF_MESSAGES, *OF_POLLS}
    for clause, (changes, verdict) in FAULTS.items():
        wrong = events
        for where, fields in changes:
            wrong = changed(wrong, where, fields)
        result = judged(tmp_path / clause, meta, wrong)
        found = {(one.clause, one.verdict) for one in (*result.findings, *result.observations)}
        assert (clause, verdict) in found, (clause, found)
