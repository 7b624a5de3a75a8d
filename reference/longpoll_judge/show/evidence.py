"""Writes the evidence of each violation as a separate history, which can be judged again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from longpoll_judge.contract.result import Finding
from longpoll_spec.history import META_FILE


def write_evidence(directory: Path, findings: Sequence[Finding]) -> int:
    """Write the evidence of every violation as a history; returns the number of violations.

    Violations of user properties are skipped, because their evidence is only two events of a pull and not a history.
    """
    violated = [(number, one) for number, one in enumerate(findings, 1) if one.verdict == "violated" and one.meta]
    for number, finding in violated:
        history = directory / f"finding-{number:04}-{finding.clause}"
        history.mkdir(parents=True, exist_ok=True)
        (history / META_FILE).write_bytes(msgspec.json.encode(finding.meta))
        lines = b"".join(msgspec.json.encode(event) + b"\n" for event in finding.evidence)
        (history / "part-000000.ndjson").write_bytes(lines)
    return len(violated)
