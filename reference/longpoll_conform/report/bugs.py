"""Recorded behaviour that is a bug of RocketMQ itself, by vector.

A broker that differs there does not have the bug. The lost and late wakeups that a load shows are findings of the
specification (`longpoll_spec.findings`).

Sources: docs/findings.md; `ConsumerFilterManager.build` (the check is an assertion, which Java skips).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from longpoll_conform.clauses import BY_ID, OF_LOAD, OF_RACE
from longpoll_spec.findings import HAZARDS, findings_of

_BOTH: Final[Mapping[str, str]] = MappingProxyType(
    {
        "hold-150": "A held pull whose topic is deleted waits for the scan after its deadline.",
        **dict.fromkeys(
            BY_ID["PULL-SQL-3"].vectors,
            "An SQL92 expression sent with the pull is not compiled, and every message is returned.",
        ),
    }
)
RECORDED: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "4.9.7": {
            **_BOTH,
            "route-384": "The name server never answers a request code that it does not know.",
            "client-344": "A group that may not be created gets members, but its pulls are rejected.",
        },
        "5.5.0": _BOTH,
    }
)
"""Recorded version -> vector -> the bug that its recorded answer shows."""


def bug_of(version: str, vector: str) -> str | None:
    """The bug that a vector's recorded answer shows, if any."""
    return RECORDED.get(version, {}).get(vector)


def bug_of_run(policy: str, seen: str) -> str | None:
    """The bug of a RocketMQ preset that a load or a race may show; None if the policy promises the property."""
    if not (policy.startswith("rocketmq") and seen.startswith((OF_LOAD, OF_RACE))):
        return None
    letters = findings_of(policy, seen.removeprefix(OF_LOAD).removeprefix(OF_RACE).replace("-", "_"))
    return " ".join(HAZARDS[letter] for letter in letters if letter in HAZARDS) or None
