"""The valid, invalid and malformed requests of the property suite."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from attrs import frozen
from msgspec import structs

from longpoll.wire.requests import send_header
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import Serialisation
from longpoll_protocol.headers import SendMessageRequestHeader

Place = Literal["end", "next", "start", "middle", "last", "negative", "beyond"]
"""The place in a queue where a pull begins; `next` is the offset that the last answer returned."""


@frozen
class Form:
    """The encoding of a request."""

    serialisation: Serialisation = Serialisation.JSON
    short_names: bool = True
    """Whether a send uses code 310 (SEND_MESSAGE_V2, with field names of one letter) instead of code 10 (SEND_MESSAGE).
    """

    def __str__(self) -> str:
        return f"{self.serialisation.name} {'310' if self.short_names else '10'}"


FORMS: Final = tuple(
    Form(kind, short) for kind in (Serialisation.JSON, Serialisation.ROCKETMQ) for short in (True, False)
)


def tag_hash(tag: str) -> int:
    """Compute Java's hash of a text by definition: s[0]*31^(n-1) + ... + s[n-1] over UTF-16 units, signed 32 bits."""
    encoded = tag.encode("utf-16-be")
    units = [int.from_bytes(encoded[at : at + 2]) for at in range(0, len(encoded), 2)]
    total: int = sum(unit * 31**power for power, unit in enumerate(reversed(units)))
    return (total + 2**31) % 2**32 - 2**31


@frozen
class Wanted:
    """A tag expression: `*`, or tags separated by `||`."""

    expression: str

    def matches(self, tag: str) -> bool:
        """Whether a message with this tag ("" for none) is delivered. Tags with equal hashes are not distinguished."""
        if self.expression == "*":
            return True
        asked = {tag_hash(part.strip()) for part in self.expression.split("||")}
        return (tag_hash(tag) if tag else 0) in asked


@frozen
class Draft:
    """A message to send, with its encoding and connection."""

    body: bytes
    tag: str = ""
    extra: Mapping[str, str] = MappingProxyType({})
    form: Form = Form()
    link: int = 0
    is_anywhere: bool = False
    """Whether the message is sent to queue -1, so that the broker chooses a queue of the topic."""

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties of the message, including the tag."""
        return {**self.extra, "TAGS": self.tag} if self.tag else self.extra


@frozen
class PullTerms:
    """The parameters of a pull, without its queue and time."""

    place: Place = "end"
    """The place in the queue where the pull begins, which determines `offset`."""
    wanted: Wanted = Wanted("*")
    count_max: int = 32
    group: int = 0
    commits: bool = False
    """Whether the pull commits its offset for its group, unless it may be held."""
    form: Form = Form()
    link: int = 0
    offset: int = 0
    commit_offset: int | None = None


def send_request(topic: str, queue_id: int, properties: Mapping[str, str], form: Form) -> tuple[int, dict[str, str]]:
    header = send_header(topic, queue_id, properties)
    if form.short_names:
        return RequestCode.SEND_MESSAGE_V2, header.encode()
    return RequestCode.SEND_MESSAGE, SendMessageRequestHeader(**structs.asdict(header)).encode()


@frozen
class Bad:
    """A request that must be rejected while the connection stays open."""

    name: str
    code: int
    changes: Mapping[str, str | None]
    """Header fields that replace those of a valid request with this code; None removes a field."""
    refusals: frozenset[int]
    """The response codes with which brokers of 4.9 and 5.x reject the request."""


_ILLEGAL: Final = frozenset({1, 29})
PULL: Final = RequestCode.PULL_MESSAGE.value
SEND: Final = RequestCode.SEND_MESSAGE_V2.value
BAD_REQUESTS: Final = (
    Bad("unknown code", 999, {}, frozenset({3})),
    Bad("unknown code of many digits", 32_767, {"x": "y"}, frozenset({3})),
    Bad("pull without a topic", PULL, {"topic": None}, frozenset({1, 17})),
    Bad("pull without a queue", PULL, {"queueId": None}, _ILLEGAL),
    Bad("pull with a word for an offset", PULL, {"queueOffset": "one"}, _ILLEGAL),
    Bad("pull of a queue that is not there", PULL, {"queueId": "77"}, _ILLEGAL),
    Bad("pull of queue -1", PULL, {"queueId": "-1"}, _ILLEGAL),
    Bad("pull of a topic that is not there", PULL, {"topic": "served-no-such-topic"}, frozenset({17})),
    Bad("pull of a topic that would leave the store", PULL, {"topic": "../x"}, frozenset({17})),
    Bad("pull for no tag", PULL, {"subscription": "||"}, frozenset({23})),
    Bad("pull by an unknown kind of expression", PULL, {"expressionType": "FOO"}, frozenset({1})),
    Bad("send without a queue", SEND, {"e": None}, _ILLEGAL),
    Bad("send with a word for a queue", SEND, {"e": "first"}, _ILLEGAL),
    Bad("send to a queue that is not there", SEND, {"e": "77"}, _ILLEGAL),
    Bad("send to a topic that would leave the store", SEND, {"b": "../x"}, _ILLEGAL),
    Bad("send to a topic with a name of 128 letters", SEND, {"b": "x" * 128}, _ILLEGAL),
    Bad("send to a topic without a name", SEND, {"b": ""}, _ILLEGAL),
    Bad("offset without a topic", RequestCode.GET_MAX_OFFSET.value, {"queueId": "x"}, _ILLEGAL),
)

MALFORMED: Final[Mapping[str, bytes]] = {
    "a negative length": (-5).to_bytes(4, signed=True) + bytes(8),
    "a length over 16 MiB": (16 * 1024 * 1024 + 1).to_bytes(4) + bytes(8),
    "the longest length there is": b"\x7f\xff\xff\xff" + bytes(8),
    "a header longer than its frame": (12).to_bytes(4) + (100).to_bytes(4) + bytes(8),
    "serialisation 7": (12).to_bytes(4) + (7 << 24 | 8).to_bytes(4) + bytes(8),
    "a JSON header that is no JSON": (12).to_bytes(4) + (8).to_bytes(4) + b"garbage!",
    "a JSON header cut short": (12).to_bytes(4) + (8).to_bytes(4) + b'{"code":',
    "a JSON header that is a list": (6).to_bytes(4) + (2).to_bytes(4) + b"[]",
    "a ROCKETMQ header cut short": (7).to_bytes(4) + (1 << 24 | 3).to_bytes(4) + b"\x00\x0b\x00",
}
"""Frames after which a broker closes the connection at once."""
