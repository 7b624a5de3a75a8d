"""The output of `longpoll conform` for people: the verdict, the counts, and a table for each kind of difference.

JSON, JUnit and HTML: `longpoll_conform.report`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from longpoll.output import Exit, out, say, styled, table
from longpoll.views.check import show_verdict
from longpoll_conform.capabilities import Identity
from longpoll_conform.known_failures import Change
from longpoll_conform.report.badge import badge
from longpoll_conform.report.conversation import lines_of
from longpoll_conform.report.sections import Sections, sections
from longpoll_conform.suite import Result, Suite

SHOWN_MAX: Final = 12
"""Failures that are shown with their conversations; --json and --pages have all."""


def show(suite: Suite, results: Sequence[Result], identity: Identity, code: Exit, changed: Change | None) -> None:
    """Print the result: the verdict, the counts, then a section for each kind of difference."""
    found = sections(suite, results)
    show_verdict(_verdict(found, code, changed))
    out.tell(found.text)
    out.tell(f"policy: {reason(identity)}")
    out.tell(f"capabilities: {', '.join(sorted(suite.capabilities)) or 'none'}")
    _show_sections(found)
    failed = [result for result in results if result.outcome == "FAIL"]
    for result in failed[:SHOWN_MAX]:
        _show_failure(result)
    if len(failed) > SHOWN_MAX:
        say(f"\n{len(failed) - SHOWN_MAX} more failed conversations: see --pages DIRECTORY or --json.")
    for name in suite.silenced_by:
        out.print(styled("[bold red]silenced[/]: the broker stopped answering after {}", name))
    if changed is not None:
        _show_change(changed)
    say(f"\n{badge(suite.policy, results)}")


def reason(identity: Identity) -> str:
    """The policy that the broker is compared with, and the reason."""
    other = "" if identity.how == "given" else "; --policy NAME chooses another"
    return f"{identity.policy}, because {identity.why}{other}"


def _verdict(found: Sections, code: Exit, changed: Change | None) -> str:
    failed, tested = found.counts["FAIL"], found.tested
    if changed is not None and (changed.new or changed.mended):
        return "the known failures changed"
    if failed:
        return f"{failed} of {tested} clauses failed" + (", all of them known" if code == Exit.OK else "")
    return "unknown: the broker could not be tested, or stopped answering" if code else "no clause failed"


def _show_sections(found: Sections) -> None:
    if found.differences:
        rows = [(each.clause, each.outcome, each.sentence, each.seen) for each in found.differences]
        say("")
        table("Differences from RocketMQ", ["clause", "outcome", "clause text", "this broker"], rows)
    if found.bugs:
        bugs = [
            (each.clause, each.outcome, each.bug, f"{'has it' if each.is_there else 'does not have it'}; {each.seen}")
            for each in found.bugs
        ]
        say("")
        table("RocketMQ's own bugs", ["clause", "outcome", "RocketMQ's bug", "this broker"], bugs)
    if found.untested:
        untested = [(" ".join(clauses), why) for why, clauses in found.untested.items()]
        say("")
        table("UNTESTED, not counted", ["clauses", "why"], untested)


def _show_failure(result: Result) -> None:
    out.print(styled("\n[bold red]FAIL[/] {} {}: {}", result.clause.id, result.vector.id, result.vector.title))
    for difference in result.differences[:5]:
        say(f"  {difference.where}\n    expected {difference.expected}\n    got      {difference.got}")
    if result.left_out:
        say(f"  ({result.left_out} steps of the vector are left out: the mismatch does not need them)")
    for line in lines_of(result.spoken):
        say(f"  {line}")


def _show_change(changed: Change) -> None:
    for name in changed.new:
        out.print(styled("[bold red]new[/]: {} fails and is not a known failure", name))
    for name in changed.mended:
        out.print(styled("[yellow]mended[/]: {} no longer fails: remove it from the list", name))
