"""The second judge: slow and simple, written from docs/contract.md alone, with one short function per clause."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from attrs import frozen
from model_tests.judge.second import logs, messages, offsets, pops, pulls, waits
from model_tests.judge.second.case import Said, begun_anew, exchanges
from model_tests.judge.second.reading import PULLS, QUERY, READS, SENDS, Record, Seen, read, wanted

Clause = Callable[[Record], Iterator[Said]]
CLAUSES: Final[dict[str, tuple[str, Clause]]] = {
    **pulls.CLAUSES,
    **waits.CLAUSES,
    **logs.CLAUSES,
    **messages.CLAUSES,
    **offsets.CLAUSES,
    **pops.CLAUSES,
}
TIMELESS: Final = (
    *("answer.once", "answer.same_connection", "commit.code.known", "log.append.once", "log.acknowledged.once"),
    *("send.acknowledged.same_connection", "send.acknowledged.tag", "pull.code.known", "pull.found.some"),
    *("pull.none.empty", "pull.found.ordered", "pull.found.from_asked", "pull.found.at_most", "pull.found.next"),
    *(
        "pull.found.identified",
        "pull.found.above_min",
        "pull.next.within",
        "pull.none.next",
        "pull.passed.next",
        "pull.illegal.outside",
    ),
    *("pull.illegal.next", "pull.min.below_max", "pull.found.tag", "pull.found.complete", "pull.passed.none_match"),
    *("pull.hold.allowed", "pull.hold.once", "pull.step.allowed", "pull.found.within"),
    *("send.code.known", "send.batch.gapless", "message.one_value"),
    *pops.TIMELESS,
)
"""Clauses that compare no times, so a wrong clock does not affect them. Times of deletions are treated separately."""


@frozen
class Opinion:
    verdict: str
    violated: frozenset[str]
    reasons: tuple[str, ...]

    @property
    def clauses(self) -> str:
        return ", ".join(sorted({reason.split(": ")[0].removeprefix("? ") for reason in self.reasons}))


def weigh(meta: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> Opinion:
    record = read(meta, events)
    gaps = list(record.gaps)
    broken: dict[str, set[str]] = {"violated": set(), "unknown": set()}
    for name, (_property, clause) in CLAUSES.items():
        for said in clause(record):
            is_certain = name in TIMELESS or said.source not in record.jumped
            broken[said.verdict if is_certain else "unknown"].add(f"{name}: {said.why}")
    gaps += ["evidence.begun_anew"] if begun_anew(record) else []
    gaps += not_judged(record)
    violated = frozenset(one.split(": ")[0] for one in broken["violated"])
    verdict = "invalid" if violated else "unknown" if broken["unknown"] or gaps else "valid"
    reasons = (*sorted(broken["violated"]), *(f"? {one}" for one in sorted(broken["unknown"])), *sorted(set(gaps)))
    return Opinion(verdict, violated, reasons)


def is_astray(request: Seen | None, answer: Seen) -> bool:
    if request is not None and request.code in pops.CODES:
        return pops.is_elsewhere(request, answer) or (answer.queue >= 0 and answer.place != request.place)
    return request is None or request.place != answer.place


def not_judged(record: Record) -> Iterator[str]:
    pulled = list(exchanges(record))
    judged = [one for one in pulled if one.code in READS and wanted(one.request) != "undecidable"]
    queries = [one for one in record.of("request_received") if one.code == QUERY and one.request]
    answered = {one.about for one in record.of("answer_sent")}
    popped = [one for one in pops.asked(record, pops.POP, pops.NOTIFICATION) if one.answer is not None]
    read = [one for one in popped if one.code in {0, 209, 210}]
    if not judged and not read and not any(one.about in answered for one in queries):
        yield "evidence.nothing_judged"
    undecidable = [one.request for one in pulled if one.code in READS and wanted(one.request) == "undecidable"]
    if any(one.expression_type != "SQL92" for one in undecidable):
        yield "evidence.not_judged: tags cannot decide"
    refused_count = sum(one.answer is not None and one.code not in READS for one in pulled)
    if refused_count >= 10 and 4 * refused_count > len(pulled):
        yield "evidence.not_judged: refused pulls"
    if len(popped) - len(read) >= 10 and 4 * (len(popped) - len(read)) > len(popped):
        yield "evidence.not_judged: refused pops"
    if any(pulls.has_unknown_tag(record, one) for one in judged):
        yield "evidence.not_judged: tags that nobody recorded"
    asked = {one.about: one for one in record.of("request_received")}
    if any(is_astray(asked.get(one.about), one) for one in record.of("answer_sent")):
        yield "evidence.not_judged: answers without requests"
    pulled_at = {one.about: one.place for one in record.of("request_received") if one.code in PULLS}
    tellers = {one.source for one in record.of("request_received")}
    steps = [one for one in record.of("hold", *waits.STEPS) if one.request and one.source in tellers]
    if any(pulled_at.get(one.about) != one.place for one in steps):
        yield "evidence.not_judged: steps without pulls"
    sent = {one.about for one in record.of("request_received") if one.code in SENDS and one.request}
    named = [one for one in record.of("message_acknowledged") if one.request]
    if any(one.about not in sent and one.source in {source for source, _request in sent} for one in named):
        yield "evidence.not_judged: acknowledgements without sends"
    requests = [one.about for one in record.of("request_received") if one.request]
    if len(set(requests)) < len(requests):
        yield "evidence.not_judged: a request told twice"
