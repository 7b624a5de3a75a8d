"""A stable name for each finding.

A follower reports a finding once and finds it again by this name in the last report. So the name must not depend on
anything that later events may change: the sentence, the window, or which lateness clause it breaks. A pull without an
answer may become one with a late answer. A finding about a request is named after the request. A finding about a log is
named after its last event, which is the faulty one.

The follower's output: `longpoll_judge.show.stream`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Final

import msgspec

from longpoll_judge.contract.causes import ANSWERS, OF_LATENESS
from longpoll_judge.contract.result import Finding
from longpoll_judge.read.schema import order_of

ID_BYTES: Final = 8
"""Two of 10^6 findings have one name by chance in one of 3 * 10^7 histories."""
LATE: Final = "late"
WRONG: Final = "wrong"


def identified(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, each with its `id`; of those that would have the same one, the later are numbered."""
    seen: Counter[str] = Counter()
    named = []
    for finding in findings:
        name = _name_of(finding)
        seen[name] += 1
        more = f"-{seen[name]}" if seen[name] > 1 else ""
        named.append(msgspec.structs.replace(finding, id=name + more))
    return named


def _name_of(finding: Finding) -> str:
    """The name of a finding from the evidence that the rule gave, before that is completed to a history."""
    kind = LATE if finding.clause in OF_LATENESS else WRONG if finding.clause in ANSWERS else finding.clause
    events = sorted(finding.evidence, key=order_of)
    own = [event for event in events if finding.request and event.get("request") == finding.request]
    anchor = _of_request(own[0]) if own else _of_event(events[-1]) if events else ()
    # A property of the user's own may be told of several times about one request: by its sentence.
    asked = finding.why if kind.startswith("own.") else ""
    content = (finding.verdict, kind, finding.topic, finding.queue, finding.request, anchor, asked)
    return blake2b(msgspec.json.encode(content), digest_size=ID_BYTES).hexdigest()


def _of_request(event: dict[str, Any]) -> tuple[str, ...]:
    return event.get("broker", ""), event["source"]


def _of_event(event: dict[str, Any]) -> tuple[str, str, int]:
    return event.get("broker", ""), event["source"], event["sequence"]
