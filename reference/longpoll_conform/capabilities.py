"""Find out the version and the capabilities of the broker under test by sending it requests.

A longpoll broker reports its policy in the answer to GET_BROKER_RUNTIME_INFO (28). RocketMQ reports a version name in
this answer (`brokerVersionDesc`). If the answer has neither a policy nor a version name, the version number in the
header of the answer decides. No request reveals the store of a broker, so the user declares it. `intended_difference`
lists the vectors in which our policies differ on purpose from the recorded version. A vector in this list fails if the
broker's answer equals the recorded one.

Sources: `AdminBrokerProcessor.java`, `MQVersion.java` of 4.9.7 and 5.5.0.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final, Literal

from attrs import frozen

from longpoll_conform.clauses import Capability
from longpoll_conform.connection import Connection, Conversation, SilentError
from longpoll_conform.play import Place
from longpoll_conform.vectors import Vector
from longpoll_conform.wire import lenient_json
from longpoll_spec.errors import UserError
from longpoll_spec.policy import policy_named

VERSIONS: Final[Mapping[str, str]] = MappingProxyType(
    {"rocketmq-4.9": "4.9.7", "rocketmq-5": "5.5.0", "strict": "4.9.7", "strict-clone": "4.9.7"}
)
"""Maps each policy to the recorded RocketMQ version whose answers it is compared with."""


@frozen
class IntendedDifference:
    """An intended difference between a policy and the recorded version."""

    why: str
    code: int
    """The response code that the policy requires instead of the recorded one."""


STRICT: Final[Mapping[str, IntendedDifference]] = MappingProxyType(
    {
        "hold-150": IntendedDifference(
            "A pull whose topic is deleted is answered 17 at the deletion; "
            "4.9.7 lets it wait for the scan after its deadline.",
            17,
        ),
        "hold-162": IntendedDifference(
            "LITE_PULL (361) is served, so that the lite pull consumer of a 5.x client gets messages; "
            "4.9.7 does not know the code.",
            0,
        ),
        **dict.fromkeys(
            ("hold-148", "send-264"),
            IntendedDifference(
                "The answer to a prepared message names its transaction, which the proxy of 5.x needs; 4.9.7 does not.",
                0,
            ),
        ),
        **dict.fromkeys(
            ("route-378", "route-380", "route-382"),
            IntendedDifference(
                "A route has `enableActingMaster`, which the Rust client needs; that of 4.9.7 has no such field.", 0
            ),
        ),
        "route-384": IntendedDifference(
            "A name server answers an unknown request with 3; that of 4.9.7 never answers.", 3
        ),
    }
)


def intended_difference(policy: str) -> Mapping[str, IntendedDifference]:
    """Return the intended differences of a policy from its recorded version, by the vector's id."""
    return STRICT if policy.startswith("strict") else {}


def is_of_the_scan(vector: Vector) -> bool:
    """Whether the recorded answer came from RocketMQ's five-second scan, which brokers of some policies do not have."""
    return bool(vector.case.get("depends") == "scan")


ANSWER_S: Final = 10.0
KNOWN_S: Final = 10.0
"""How many seconds a broker may take to register with its name server."""
LOOK_S: Final = 0.2
HELD_MS: Final = 2_500
"""The requested hold in ms. A broker without long polling answers this request after one or two seconds."""
SHOWN_MS: Final = 3_000
"""How many ms a working broker may take until a pull finds an acknowledged message."""
SYSTEM_ERROR, NO_PERMISSION = 1, 16
STORED: Final = frozenset({0, 10, 11, 12})
"""The response codes which mean that the message was stored. With codes 10 to 12, a disk or a slave was slow."""
RUNTIME_INFO: Final = 28
DEFAULT: Final = "rocketmq-5"
"""The policy for a broker of an unknown version: the newest recorded release."""
FIRST_OF_5: Final = 412
"""The ordinal of V5_0_0_SNAPSHOT in `MQVersion`. All lower ordinals are version 4.9 or older."""
OLDEST: Final = 1
"""The lowest ordinal of a release in `MQVersion`. An answer with ordinal 0 reports no version."""
SHOWN_MAX: Final = 60
"""The maximum number of characters of the broker's own text that a message shows."""
_NAME: Final = re.compile(r"[Vv]?(\d{1,3})[_.](\d{1,3})(?:[_.]|$)")
Fields = dict[str, str]


def topic_fields(topic: str) -> Fields:
    """Returns the fields of a request that creates a topic of four queues."""
    return {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip


def send_fields(topic: str) -> Fields:
    """Returns the fields of a send to queue 0, with the short names of SEND_MESSAGE_V2 (310)."""
    return {
        "a": "PG", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0", "i": "",
        "j": "0", "k": "false", "m": "false",
    }  # fmt: skip


def pull_fields(topic: str, *, queue: int = 1, offset: int = 0, hold_ms: int = 0, expression: str = "") -> Fields:
    """Returns the fields of a pull that contains its subscription."""
    sys_flag = 4 | 2 * bool(hold_ms)
    return {
        "consumerGroup": "GPROBE", "topic": topic, "queueId": str(queue), "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": str(sys_flag), "commitOffset": "0", "suspendTimeoutMillis": str(hold_ms),
        "subVersion": "0", "subscription": expression or "*", "expressionType": "SQL92" if expression else "TAG",
    }  # fmt: skip


def ask(place: Place, code: int, fields: Fields, body: bytes = b"") -> tuple[Mapping[str, Any] | None, float]:
    """Send a request on a new connection; return the answer, or None, and the response time in milliseconds.

    Raises SilentError if the broker cannot be reached.
    """
    conversation = Conversation()
    line = Connection("probe", place.broker, conversation)
    try:
        begun_s = time.monotonic()
        answer = line.wait(line.ask({"code": code, "extFields": fields, "body": body}), ANSWER_S)
        return answer.command, (answer.at_s - begun_s) * 1000
    finally:
        line.close()


def code_of(place: Place, code: int, fields: Fields, body: bytes = b"") -> int | None:
    """The response code of a request; None if the request was not answered."""
    answer, _after_ms = ask(place, code, fields, body)
    return None if answer is None else int(answer["code"])


def find_names(place: Place) -> bool:
    """Read the broker's name and cluster from its name server; return whether a name server answered.

    A broker that has just started may not be registered yet, so the function queries the name server for up to
    `KNOWN_S`.
    """
    end_s = time.monotonic() + KNOWN_S
    is_there, is_known = _names(place)
    while is_there and not is_known and time.monotonic() < end_s:
        time.sleep(LOOK_S)
        is_there, is_known = _names(place)
    return is_there


def _names(place: Place) -> tuple[bool, bool]:
    """Return whether a name server answers, and whether it knows the broker."""
    try:
        line = Connection("ns", place.name_server, Conversation())
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
        # A broker behind a proxy has another address than the registered one. If only one broker is registered, take
        # its name; otherwise the name is unknown.
        for name in mine or (brokers if len(brokers) == 1 else ()):
            place.broker_name, place.cluster = str(name), str(brokers[name]["cluster"])
            return True, True
    return answer is not None, False


def find(place: Place, run: str, settled: Collection[Capability] = ()) -> set[Capability]:
    """Find the broker's capabilities. Pass known ones as `settled`, because the test for long polling takes seconds.

    Raises SilentError if the broker cannot be reached or does not answer.
    """
    found: set[Capability] = set()
    made = f"tcap{run}"
    if code_of(place, 310, send_fields(f"tauto{run}"), b"probe") in STORED:
        found.add("auto-create")
    if code_of(place, 17, topic_fields(made)) is None:
        raise SilentError("the broker does not answer a request to create a topic, so no clause can be tested")
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
    # Ask the name server only now, because the broker registers at once when a topic is created.
    if find_names(place):
        found.add("name-server")
    if answer is None or after_ms >= HELD_MS - 100 or int(answer["code"]) == NO_PERMISSION:
        found.add("long-polling")
    return found


Health = tuple[int | None, int | None, int | None]
"""The response codes to three requests: create a topic, send (0 if stored), and pull the message. None means no answer.
"""


def health(place: Place, run: str) -> Health:
    """Create a topic, send a message and pull it, because every other test depends on these three requests."""
    topic = f"twell{run}"
    asked = (
        (17, topic_fields(topic), b""),
        (310, send_fields(topic), b"well"),
        (11, pull_fields(topic, queue=0, hold_ms=SHOWN_MS), b""),
    )
    made, sent, pulled = (_code_or_none(place, *one) for one in asked)
    return made, 0 if sent in STORED else sent, pulled


def _code_or_none(place: Place, code: int, fields: Fields, body: bytes) -> int | None:
    try:
        return code_of(place, code, fields, body)
    except SilentError:
        return None


def is_well(place: Place, run: str) -> bool:
    """Whether the broker stores a message and returns it, or has no read permission."""
    _made, sent, pulled = health(place, run)
    return sent == 0 and pulled in {0, NO_PERMISSION}


How = Literal["given", "policy", "version", "default"]


@frozen
class Identity:
    """The policy that a broker is compared with."""

    policy: str
    """A preset for which answers were recorded."""
    how: How
    """What decided the policy: the user, the policy that the broker reports, the version that it reports, or the
    default."""
    why: str
    """The reason for the policy, which completes the sentence "POLICY, because ..."."""
    version: str = ""
    """The version that the broker reports; empty if it reports none."""
    knobs: tuple[str, ...] = ()
    """The knobs in which a longpoll broker differs from its preset, by its own report, as `NAME=VALUE`."""


def given(policy: str) -> Identity:
    """Returns the identity for a policy that the user has chosen."""
    return Identity(policy, "given", "--policy names it")


def identify(place: Place) -> Identity:
    """Ask the broker for its version, and return the policy to compare it with.

    Raises SilentError if the broker cannot be reached.
    """
    answer, _after_ms = ask(place, RUNTIME_INFO, {})
    table = _table(answer)
    reported, name = table.get("longpollPolicy", ""), table.get("brokerVersionDesc", "")
    return _by_policy(reported, name) or _by_name(name) or _by_number(answer) or _unknown(name)


def _table(answer: Mapping[str, Any] | None) -> Mapping[str, str]:
    """Return the key-value table in an answer to GET_BROKER_RUNTIME_INFO (28); empty if the answer has no table."""
    try:
        found = lenient_json((answer or {}).get("body") or b"")["table"]
        return {str(name): str(value) for name, value in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _by_policy(reported: str, version: str) -> Identity | None:
    preset, *knobs = reported.split("+")
    if preset not in VERSIONS:
        return None
    try:
        policy_named(reported)
    except UserError:  # A newer broker may report unknown knobs; then the version that it reports decides.
        return None
    return Identity(preset, "policy", f"the broker reports that it runs policy {reported}", version, tuple(knobs))


def _by_name(name: str) -> Identity | None:
    found = _NAME.match(name)
    if found is None:
        return None
    major, minor = int(found[1]), int(found[2])
    policy = "rocketmq-5" if major >= 5 else "rocketmq-4.9"
    nearest = "" if (major, minor) == (4, 9) or major == 5 else ", and this is the nearest recorded version"
    return Identity(policy, "version", f"the broker reports version {name[:SHOWN_MAX]}{nearest}", name[:SHOWN_MAX])


def _by_number(answer: Mapping[str, Any] | None) -> Identity | None:
    number = (answer or {}).get("version")
    if type(number) is not int or number < OLDEST:
        return None
    policy, side = ("rocketmq-5", "5.0 or newer") if number >= FIRST_OF_5 else ("rocketmq-4.9", "older than 5.0")
    return Identity(policy, "version", f"its answers carry version number {number}, which is {side}", str(number))


def _unknown(name: str) -> Identity:
    what = f"an unknown version, {name[:SHOWN_MAX]!r}" if name else "no version"
    return Identity(DEFAULT, "default", f"the broker reports {what}, and this is the default")
