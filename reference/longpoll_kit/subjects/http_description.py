"""The TOML description of a long-polling service over HTTP: its requests, its answers and its contract."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from longpoll_kit.errors import SubjectError
from longpoll_kit.subject import MessageOrder, Semantics

Request = Annotated[str, msgspec.Meta(pattern="^[A-Z]+ /")]
"""The HTTP method and path of a request, separated by a space."""


class Contract(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The attributes of `longpoll.LongPollSubject` that the file may declare."""

    semantics: Semantics = "offsets"
    order: MessageOrder = "total"
    redelivery_ms: int | None = None
    visible_ms: int = 0
    serves_longest_waiting: bool = False
    wait_unit_ms: int = 1
    wait_min_ms: int = 0
    wait_max_ms: int | None = None
    client_ends_wait: bool = False
    polls_max: int | None = None
    body_max: int | None = None


class Service(Contract, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The contents of a description file; its keys are the attribute names."""

    publish: Request
    """The request that publishes, such as `POST /{queue}`. The request's content is the message if `publish_body` is
    empty."""
    publish_body: str = ""
    """The key of the message in the published JSON object; empty if the request's content is the message."""
    headers: Mapping[str, str] = {}
    """Headers of each request, such as `Authorization`."""
    poll: Request
    """The request that polls, such as `GET /{queue}?offset={position}&timeout_ms={wait_ms}`; `{wait_s}` is in seconds.
    """
    first: str = "0"
    """The position of a queue's first message."""
    messages: str = ""
    """The path of the message list in the JSON answer, such as `result.items`; empty if the answer is the list."""
    body: str = ""
    """The path of the body in a message; empty if the message is the body."""
    position: str = ""
    """The path of the next position in the answer; if empty, each message advances the position by 1."""
    encoding: Literal["text", "base64"] = "text"
    """The encoding of each body in the answer."""
    nothing: tuple[int, ...] = (204, 304)
    """The HTTP status codes of answers without messages."""


def read(file: Path) -> Service:
    """Read a description. Raises SubjectError if the file is invalid, and OSError if it cannot be read."""
    try:
        return msgspec.toml.decode(file.read_bytes(), type=Service)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SubjectError(f"{file}: {error}; docs/kit.md describes the file") from None
