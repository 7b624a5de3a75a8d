"""Which policy a broker is held to when the user names none: the broker is asked for its version.

A longpoll broker reports its policy in the answer to request 28 (GET_BROKER_RUNTIME_INFO). RocketMQ reports a version
name there (`brokerVersionDesc`). Without either, the version number in the header of the answer decides.

Sources: `AdminBrokerProcessor.java`, `MQVersion.java` of 4.9.7 and 5.5.0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from attrs import frozen

from longpoll_conform.capabilities import ask
from longpoll_conform.differs import VERSIONS
from longpoll_conform.play import Place
from longpoll_conform.wire import lenient_json

RUNTIME_INFO: Final = 28
DEFAULT: Final = "rocketmq-5"
"""For a broker of an unknown version: the newest release that was recorded."""
FIRST_OF_5: Final = 412
"""The ordinal of V5_0_0_SNAPSHOT in `MQVersion`: all that are lower are of 4.9 or older."""
OLDEST: Final = 1
"""Ordinals below this one are not a release: 0 stands for a missing version."""
SHOWN_MAX: Final = 60
"""Characters of the broker's own text that are shown."""
_NAME: Final = re.compile(r"[Vv]?(\d{1,3})[_.](\d{1,3})(?:[_.]|$)")
How = Literal["given", "policy", "version", "default"]


@frozen
class Identity:
    """The policy that a broker is held to."""

    policy: str
    """A preset with recorded answers."""
    how: How
    """Chosen by: the user, the policy or the version that the broker reports, or the default."""
    why: str
    """Completes the sentence "POLICY, because ..."."""
    version: str = ""
    """What the broker reports as its version; empty where it reports none."""
    knobs: tuple[str, ...] = ()
    """Knobs `NAME=VALUE` that a longpoll broker reports besides its preset."""


def given(policy: str) -> Identity:
    """The user's own choice."""
    return Identity(policy, "given", "--policy names it")


def identify(place: Place) -> Identity:
    """Ask the broker which version it is. Raises SilentError when it cannot be reached."""
    answer, _after_ms = ask(place, RUNTIME_INFO, {})
    table = _table(answer)
    reported, name = table.get("longpollPolicy", ""), table.get("brokerVersionDesc", "")
    return _by_policy(reported, name) or _by_name(name) or _by_number(answer) or _unknown(name)


def _table(answer: Mapping[str, Any] | None) -> Mapping[str, str]:
    """The texts by name of an answer to request 28; none where it is anything else."""
    try:
        found = lenient_json((answer or {}).get("body") or b"")["table"]
        return {str(name): str(value) for name, value in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _by_policy(reported: str, version: str) -> Identity | None:
    preset, *knobs = reported.split("+")
    if preset not in VERSIONS:
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
