"""Checks the clauses that need a load or a race instead of a recorded conversation.

The load, whose groups commit and query offsets, goes through a recording proxy, and the judge checks each property on
the history. The race goes directly to the broker, so that races happen as often as possible. A violation that the
policy permits is NON-STRICT. The other clauses are in `longpoll_conform.suite`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from attrs import field, frozen

from longpoll.verification import races
from longpoll.verification.broker_process import HostLatency
from longpoll.verification.limits import TIMELY, Declared, Limits, by_promises, limits_of, most_of
from longpoll.wire.load import LoadPlan, LoadReport, drive
from longpoll_conform.clauses import BY_VECTOR, OF_LOAD, OF_RACE
from longpoll_conform.compare import Difference
from longpoll_conform.connection import COARSE_MS, REMEDY, TOO_SLOW
from longpoll_conform.suite import Outcome, Result, Seen
from longpoll_judge.contract.clauses import CLAUSE
from longpoll_judge.contract.result import COMMIT_IS_TOLD, COMMIT_NEVER_REGRESSES, Finding, Follow
from longpoll_judge.contract.result import Result as Judged
from longpoll_judge.run.pipeline import judge
from longpoll_observe.observer import Observer, name_of
from longpoll_runtime import Address, Runtime
from longpoll_runtime.recoverable import FAULTS

DELIVERED: Final = f"{OF_LOAD}delivered"
OF_COMMITS: Final = (COMMIT_NEVER_REGRESSES, COMMIT_IS_TOLD)
OF_RACES: Final[Mapping[str, Outcome]] = {"violated": "FAIL", "ok": "PASS"}
Say = Callable[[str], None]


@frozen
class Loaded:
    """The broker under test, and the policy that it should follow."""

    runtime: Runtime
    broker: Address
    topic: str
    """The prefix of the test's topics; no topic of the broker begins with it."""
    known: Declared
    recorded: Path
    """A new directory for the history, which is kept."""
    race_s: float
    """Seconds of the race; 0 to skip it."""
    say: Say = field(default=lambda _text: None)


def see(loaded: Loaded, wanted: Collection[str]) -> Sequence[Result]:
    """Test the wanted clauses of `longpoll_conform.clauses.SEEN`, and return their results in the order of SEEN.

    Faults of the broker are in the results. A clause that could not be tested is UNTESTED, with the reason.
    """
    found: dict[str, Result] = {}
    for beginning, look in ((OF_LOAD, _load), (OF_RACE, _race)):
        mine = [name for name in wanted if name.startswith(beginning)]
        try:
            results = look(loaded, mine) if mine else ()
        except FAULTS as error:
            results = [_result(name, "UNTESTED", f"the load could not run: {error}") for name in mine]
        found |= {result.vector.id: result for result in results}
    return [found[name] for name in wanted]


# -- a load, judged --------------------------------------------------------------------------------------------------


def _load(loaded: Loaded, names: Sequence[str]) -> Sequence[Result]:
    loaded.say("a load, recorded and judged")
    topic = f"{loaded.topic}-load"
    with Observer.start(
        loaded.runtime, brokers=[loaded.broker], record_directory=str(loaded.recorded), policy=loaded.known.policy.name
    ) as observer:
        door = observer.doors[name_of(loaded.broker)]
        with HostLatency(loaded.runtime, loaded.broker, topic) as echo:
            report = drive(loaded.runtime, door, LoadPlan(topic, commits=True), lambda _done, _all: None)
    limits = limits_of(echo.worst_ms)
    found = judge([loaded.recorded], engine="local", wake_ms=limits.wake_ms, late_ms=limits.late_ms)
    kept, excused = by_promises(found, loaded.recorded, loaded.known, limits)
    verdicts = Verdicts(loaded.known, limits, report, found, kept, dict(excused))
    if report.problems:
        delivered = _result(DELIVERED, "FAIL", f"{len(report.problems)} problems, the first: {report.problems[0]}")
    elif report.troubles:
        delivered = _result(DELIVERED, "UNTESTED", f"ended early: {report.troubles[0]}")
    else:
        delivered = _result(DELIVERED, "PASS")
    return [delivered if name == DELIVERED else verdicts.result(name) for name in names]


@frozen
class Verdicts:
    """The judge's verdict on each property."""

    known: Declared
    limits: Limits
    report: LoadReport
    """The results of the load itself."""
    judged: Judged
    kept: Judged
    """The findings, except those that the policy permits."""
    excused: Mapping[str, int]
    """Maps each property to the number of its permitted violations."""

    def result(self, name: str) -> Result:
        """Return the result of the clause `load-NAME` about the property NAME."""
        prop = name.removeprefix(OF_LOAD).replace("-", "_")
        if prop in OF_COMMITS and self.report.unknown_codes:
            (code, *_others) = sorted(self.report.unknown_codes)
            return _result(name, "UNIMPLEMENTED", f"the broker does not know request {code}")
        findings = [one for finding in self.kept.findings for one in finding.told() if one.property == prop]
        violated = [finding for finding in findings if finding.verdict == "violated"]
        if violated:
            return _result(name, "FAIL", violated[0].why, tuple(map(_difference, violated)))
        if prop in self.excused:
            most = most_of(self.known, self.limits)
            rate = f"{self.excused[prop]} of {self.judged.judged.get(prop, 0)} times"
            why = f"{self.known.name_of(prop)} {rate}, as the policy declares: within {most}"
            return _result(name, "NON-STRICT", why)
        unknown = f"unknown: {findings[0].why}" if findings else self._unseen(prop)
        return _result(name, "UNTESTED" if unknown else "PASS", unknown)

    def _unseen(self, prop: str) -> str:
        """Say why a property without findings was not tested by the load; empty if the load tested the property."""
        if not self.judged.judged.get(prop):
            return "the load asked nothing of it"
        if prop in OF_COMMITS and not self.report.told_count:
            return "no question for an offset was answered with one"
        if self.judged.gaps:
            gap = self.judged.gaps[0]
            return f"the record has holes: {gap['why']} ({gap['where']})"
        if self.limits.are_coarse and prop in TIMELY:
            return f"{TOO_SLOW}: the smallest request took over {COARSE_MS:,.0f} ms; {REMEDY}"
        return ""


def _difference(finding: Finding | Follow) -> Difference:
    request = finding.request if isinstance(finding, Finding) else next(iter(finding.requests), "")
    where = f"{finding.topic}, queue {finding.queue}, request {request or 'none'}"
    return Difference(where, f"{finding.clause}: {CLAUSE[finding.clause].says}", finding.why)


# -- results of a race -----------------------------------------------------------------------------------------------


def _race(loaded: Loaded, names: Sequence[str]) -> Sequence[Result]:
    if not loaded.race_s:
        return [_result(name, "UNTESTED", "--race-seconds 0") for name in names]
    loaded.say("messages race the pulls that wait for them")
    topic = f"{loaded.topic}-races"
    told = races.races(
        loaded.runtime, loaded.broker, topic, loaded.race_s, lambda _done, _all: None, known=loaded.known
    )
    outcome: Outcome = OF_RACES.get(told.outcome, "UNTESTED")
    if outcome == "PASS" and told.is_declared:
        outcome = "NON-STRICT"
    return [_result(name, outcome, "" if outcome == "PASS" else told.detail) for name in names]


def _result(name: str, outcome: Outcome, why: str = "", differences: tuple[Difference, ...] = ()) -> Result:
    clause = BY_VECTOR[name]
    return Result(Seen(name, clause.sentence), clause, outcome, why, differences)
