"""What the broker under test can do, found by asking it: which clauses apply hangs on it.

Leaves out what nobody can find by asking: the store that a broker serves is declared.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from longpoll_conform.clauses import Capability
from longpoll_conform.line import Conversation, Line, SilentError
from longpoll_conform.play import Place
from longpoll_conform.wire import lenient_json

ANSWER_S: Final = 10.0
KNOWN_S: Final = 10.0
"""How long a broker may take to be known to its name server."""
LOOK_S: Final = 0.2
HELD_MS: Final = 2_500
"""The hold that is asked for: a broker that holds nothing answers after one or two seconds."""
SHOWN_MS: Final = 3_000
"""How long a broker that is well may take to show a message that it has acknowledged."""
SYSTEM_ERROR, NO_PERMISSION = 1, 16
Fields = dict[str, str]


def topic_fields(topic: str) -> Fields:
    """The fields of a request that makes a topic of four queues."""
    return {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip


def send_fields(topic: str) -> Fields:
    """The fields of a send to queue 0, with the short names of request 310."""
    return {
        "a": "PG", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0", "i": "",
        "j": "0", "k": "false", "m": "false",
    }  # fmt: skip


def pull_fields(topic: str, *, queue: int = 1, offset: int = 0, hold_ms: int = 0, expression: str = "") -> Fields:
    """The fields of a pull that brings its subscription."""
    sys_flag = 4 | 2 * bool(hold_ms)
    return {
        "consumerGroup": "GPROBE", "topic": topic, "queueId": str(queue), "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": str(sys_flag), "commitOffset": "0", "suspendTimeoutMillis": str(hold_ms),
        "subVersion": "0", "subscription": expression or "*", "expressionType": "SQL92" if expression else "TAG",
    }  # fmt: skip


def ask(place: Place, code: int, fields: Fields, body: bytes = b"") -> tuple[Mapping[str, Any] | None, float]:
    """One request on a connection of its own: the answer, None for none, and after how many milliseconds it came.

    Raises SilentError when the broker cannot be reached.
    """
    conversation = Conversation()
    line = Line("probe", place.broker, conversation)
    try:
        begun_s = time.monotonic()
        answer = line.wait(line.ask({"code": code, "extFields": fields, "body": body}), ANSWER_S)
        return answer.command, (answer.at_s - begun_s) * 1000
    finally:
        line.close()


def code_of(place: Place, code: int, fields: Fields, body: bytes = b"") -> int | None:
    """The response code of a request; None for no answer."""
    answer, _after_ms = ask(place, code, fields, body)
    return None if answer is None else int(answer["code"])


def find_names(place: Place) -> bool:
    """Take the broker's name and cluster from what its name server knows of it; whether there is a name server.

    A broker that has just been started may not be known there yet, and is asked for again for a while.
    """
    end_s = time.monotonic() + KNOWN_S
    is_there, is_known = _names(place)
    while is_there and not is_known and time.monotonic() < end_s:
        time.sleep(LOOK_S)
        is_there, is_known = _names(place)
    return is_there


def _names(place: Place) -> tuple[bool, bool]:
    """Whether there is a name server, and whether it knows the broker."""
    try:
        line = Line("ns", place.name_server, Conversation())
    except SilentError:
        return False, False
    try:
        answer = line.wait(line.ask({"code": 106, "extFields": None}), ANSWER_S).command
    except SilentError:
        return False, False
    finally:
        line.close()
    with suppress(ValueError, KeyError, AttributeError, TypeError):
        address = f"{place.broker[0]}:{place.broker[1]}"
        brokers = lenient_json((answer or {})["body"])["brokerAddrTable"]
        mine = [name for name, broker in brokers.items() if address in broker["brokerAddrs"].values()]
        # Behind a proxy it has another address: then it is the only one, or nobody knows.
        for name in mine or (brokers if len(brokers) == 1 else ()):
            place.broker_name, place.cluster = str(name), str(brokers[name]["cluster"])
            return True, True
    return answer is not None, False


def find(place: Place, run: str, settled: Collection[Capability] = ()) -> set[Capability]:
    """Ask the broker what it can do, but for what is `settled`: whether it holds pulls takes seconds to find.

    Raises SilentError when it cannot be reached or answers nothing.
    """
    found: set[Capability] = set()
    made = f"tcap{run}"
    if code_of(place, 310, send_fields(f"tauto{run}"), b"probe") == 0:
        found.add("auto-create")
    if code_of(place, 17, topic_fields(made)) is None:
        raise SilentError("the broker answers no request that makes a topic; it cannot be asked for anything")
    with ThreadPoolExecutor(3) as pool:
        hold_ms = 0 if "long-polling" in settled else HELD_MS
        held = pool.submit(ask, place, 11, pull_fields(made, hold_ms=hold_ms))
        read = pool.submit(code_of, place, 11, pull_fields(made))
        filtered = pool.submit(code_of, place, 11, pull_fields(made, expression="a > 1"))
        answer, after_ms = held.result()
        if read.result() not in {NO_PERMISSION, None}:
            found.add("readable")
        if filtered.result() not in {SYSTEM_ERROR, NO_PERMISSION, None}:
            found.add("sql92")
    # After a topic was made, of which a broker tells its name server at once.
    if find_names(place):
        found.add("name-server")
    if answer is None or after_ms >= HELD_MS - 100 or int(answer["code"]) == NO_PERMISSION:
        found.add("long-polling")
    return found


Health = tuple[int | None, int | None, int | None]
"""The codes that a request to make a topic, a send to it and a pull of that message are answered; None for none."""


def health(place: Place, run: str) -> Health:
    """What the broker answers to the three requests that everything else needs."""
    topic = f"twell{run}"
    asked = (
        (17, topic_fields(topic), b""),
        (310, send_fields(topic), b"well"),
        (11, pull_fields(topic, queue=0, hold_ms=SHOWN_MS), b""),
    )
    made, sent, pulled = (_code_or_none(place, *one) for one in asked)
    return made, sent, pulled


def _code_or_none(place: Place, code: int, fields: Fields, body: bytes) -> int | None:
    try:
        return code_of(place, code, fields, body)
    except SilentError:
        return None


def is_well(place: Place, run: str) -> bool:
    """Whether the broker stores a message and gives it back, or may not be read."""
    _made, sent, pulled = health(place, run)
    return sent == 0 and pulled in {0, NO_PERMISSION}
