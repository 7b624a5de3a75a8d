"""A name for each finding that stays the same however often, and from however much of its record, it is found.

Who follows a history is told of a finding once, and knows it by its name in the report at the end. So a name rests on
nothing that more events may change: not on the sentence or the window, and not on which of the clauses about lateness
is told, since a pull without an answer becomes one with a late answer, nor on which of those that one answer breaks.
A finding of a request is named by the request, one of a log by its last event, which is the one at fault.

Leaves out who is told, and where (`longpoll_judge.show.stream`).
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
    """Of the evidence as the rules give it, before it is made a history by itself."""
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
