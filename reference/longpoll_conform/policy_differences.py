"""The intended differences between our policies and the version whose vectors they are compared with.

A vector named here must differ: one that has become equal is a failure too. Policies that describe a version of
RocketMQ have no intended differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from attrs import frozen

from longpoll_conform.vectors import Vector

VERSIONS: Final[Mapping[str, str]] = MappingProxyType(
    {"rocketmq-4.9": "4.9.7", "rocketmq-5": "5.5.0", "strict": "4.9.7", "strict-clone": "4.9.7"}
)
"""Policy -> the recorded version that it is compared with."""


@frozen
class IntendedDifference:
    """An intended difference."""

    why: str
    code: int
    """The required response code."""


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
    """The intended differences of a policy, by the vector's id."""
    return STRICT if policy.startswith("strict") else {}


def is_of_the_scan(vector: Vector) -> bool:
    """Whether the recorded answer came from the five-second scan, which not every policy has."""
    return bool(vector.case.get("depends") == "scan")
