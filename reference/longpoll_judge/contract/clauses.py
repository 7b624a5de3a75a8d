"""The judge's contract as data: what a correct broker may do on the pull path, clause by clause.

Every finding and every gap names its clause by id. `docs/contract.md` prints these clauses and their definitions, and a
test injects a fault for each. The rules that judge them: `rightness`, `promptness`, `holding`, `logs`, `sends`,
`commits`, `holds`, `conformance`, `survey`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from longpoll_judge.contract.clause import Clause
from longpoll_judge.contract.messages import MESSAGE_CLAUSES
from longpoll_judge.contract.others import COMMIT_CLAUSES, EVIDENCE_CLAUSES, LAW_CLAUSES, LOG_CLAUSES, SEND_CLAUSES
from longpoll_judge.contract.pulls import PULL_CLAUSES
from longpoll_judge.contract.result import Finding, FindingVerdict

CLAUSES: Final = (
    *PULL_CLAUSES, *LOG_CLAUSES, *SEND_CLAUSES, *MESSAGE_CLAUSES, *COMMIT_CLAUSES, *LAW_CLAUSES, *EVIDENCE_CLAUSES
)  # fmt: skip
"""The whole contract, in the order of the page."""
CLAUSE: Final = {clause.id: clause for clause in CLAUSES}


def finding_of(
    evidence: list[dict[str, Any]],
    subject: dict[str, Any],
    *,
    clause: str,
    verdict: FindingVerdict,
    why: str,
    messages: Sequence[int] = (),
) -> Finding:
    """A finding of these events; one of them, `subject`, gives its location."""
    return Finding(
        property=CLAUSE[clause].property,
        clause=clause,
        verdict=verdict,
        topic=subject.get("topic", ""),
        queue=subject.get("queue", -1),
        request=subject.get("request", ""),
        window_start_ms=min(event["after_ns"] for event in evidence) / 1_000_000,
        window_end_ms=max(event["before_ns"] for event in evidence) / 1_000_000,
        why=why,
        evidence=evidence,
        messages=list(messages),
    )


def clause_tables() -> str:
    """The clauses as Markdown, a table a group."""
    groups: Iterable[tuple[str, tuple[Clause, ...]]] = (
        ("Pulls", PULL_CLAUSES),
        ("Logs", LOG_CLAUSES),
        ("Sends", SEND_CLAUSES),
        ("Messages", MESSAGE_CLAUSES),
        ("Committed offsets", COMMIT_CLAUSES),
        ("The law", LAW_CLAUSES),
        ("Evidence", EVIDENCE_CLAUSES),
    )
    return "\n".join(_table(title, clauses) for title, clauses in groups)


def _table(title: str, clauses: tuple[Clause, ...]) -> str:
    lines = [
        f"### {title}",
        "",
        "| clause | what must hold | property | seen | needs | at most | source |",
        "|---|---|---|---|---|---|---|",
    ]
    for clause in clauses:
        needs = ", ".join(f"`{one}`" for one in clause.needs) + ("; a whole record" if clause.whole_record else "")
        cells = (clause.says, clause.property, clause.seen, needs, clause.verdict, clause.source)
        lines.append(f"| `{clause.id}` | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])
