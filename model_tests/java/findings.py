"""The tokens of docs/findings.md, and the expected result of their replay on each version."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from attrs import frozen

from longpoll_spec.engines.tokens import replay
from longpoll_spec.model import Trace

PAGE: Final = Path(__file__).parents[2] / "docs" / "findings.md"


@frozen
class Finding:
    policy: str
    property_name: str
    token: str

    @property
    def trace(self) -> Trace:
        return replay(self.token)


def findings() -> list[Finding]:
    tokens = re.findall(r"longpoll explain (lp1\.\S+)", PAGE.read_text(encoding="utf-8"))
    traces = [(token, replay(token)) for token in dict.fromkeys(tokens)]
    return [Finding(trace.model.policy.name, trace.property_name, token) for token, trace in traces]


def token_of(policy: str, property_name: str) -> str:
    return next(each.token for each in findings() if (each.policy, each.property_name) == (policy, property_name))


SHOWN_4: Final = (
    "lost_by_hold", "lost_by_keep", "queued_by_deadline", "dropped_by_reject", "dropped_by_throw", "closed_is_let_go",
    "commit_never_regresses", "buckets_are_swept", "round_is_whole", "answered_on_stop",
)  # fmt: skip
"""The properties that 4.9.7 breaks, each with its token of rocketmq-4.9."""
SHOWN_5: Final = tuple(name for name in SHOWN_4 if name not in {"round_is_whole", "commit_never_regresses"})
"""The properties that 5.5.0 breaks with the same tokens as 4.9.7. The finding about commits has a different token."""
