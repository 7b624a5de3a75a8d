"""Play every vector that applies and record the results; continue after failures, and after the broker has crashed.

Vectors with immediate answers are played one by one, to identify a vector that stops the broker. Vectors that wait are
played concurrently. If a vector's answer is late or missing, the vector is played again alone, because a busy host can
cause this. A conversation that shows a difference is then reduced: steps are removed while the difference remains.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Literal

from attrs import Factory, define, evolve, field, frozen

from longpoll_conform.capabilities import VERSIONS, Health, find, health, intended_difference, is_of_the_scan
from longpoll_conform.clauses import BY_VECTOR, CLAUSES, PROFILES, Capability, Clause
from longpoll_conform.compare import Difference, compare
from longpoll_conform.connection import REMEDY, SLOW_MS, Echo, RecordedFrame, SilentError, too_slow
from longpoll_conform.play import UNKNOWN_CODE, Place, play
from longpoll_conform.vectors import RECORDED_AS, Vector

TRIES_MAX: Final = 40
UNTIL_MS: Final = 300
"""How many ms a reduced conversation waits for a queue to reach an offset; the sends may have been removed, so the wait
is short."""
PARTS: Final = ("after", "during", "setup")
KEPT: Final = frozenset({34, 200})
"""Request codes that a reduction keeps: heartbeats (34) and group settings (200). A correct broker needs them to give
the recorded answers. A broker that ignores them gives the same wrong answers without them, so a reduction would remove
them."""
CODE: Final = "response.code"


def minimise(
    vector: Vector, differences: Sequence[Difference], play: Callable[[Vector], Sequence[Difference]]
) -> tuple[Vector, int]:
    """Remove the steps that the first difference does not need; return the vector and the number of removed steps.

    `play` returns the differences of a vector. Only the differences in the answer to the vector's request are compared,
    because the positions of steps change. A step also stays if removing it causes another difference or response code,
    because the recorded answer then no longer applies: for example, no step created the topic.
    """
    wanted = next((each for each in differences if each.where.startswith("response")), None)
    if wanted is None:
        return vector, 0
    places = {each.where for each in differences}
    left_out, tries, best = 0, 0, vector
    for part in PARTS:
        for number in reversed(range(len(best.case.get(part, ())))):
            if tries >= TRIES_MAX:
                return best, left_out
            if best.case[part][number].get("code") in KEPT:
                continue
            less = evolve(best, case=_without(best.case, part, number))
            tries += 1
            found = [each for each in play(less) if not each.where.startswith(PARTS)]
            is_same = any((each.where, each.got) == (wanted.where, wanted.got) for each in found)
            if is_same and {each.where for each in found} <= places and _codes(found) == _codes(differences):
                best, left_out = less, left_out + 1
    return best, left_out


def _codes(differences: Sequence[Difference]) -> set[str]:
    """Return the wrong response code among the differences as a set, which is empty if the code did not differ."""
    return {each.got for each in differences if each.where == CODE}


def _without(case: Mapping[str, Any], part: str, number: int) -> Mapping[str, Any]:
    found = {name: [_hasty(step) for step in case.get(name, ())] for name in PARTS}
    del found[part][number]
    return {**case, **found}


def _hasty(step: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**step, "limit_ms": UNTIL_MS} if "until_max_offset" in step else step


Outcome = Literal["PASS", "FAIL", "NON-STRICT", "UNIMPLEMENTED", "UNTESTED"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("FAIL", "NON-STRICT", "UNIMPLEMENTED", "PASS", "UNTESTED")
"""The outcomes from worst to best; the outcome of a clause is the worst of its vectors."""
BAD: Final = frozenset({"FAIL", "UNTESTED"})
"""A vector with one of these outcomes is played again, because the broker may have stopped answering."""
STOPPED: Final = "the broker stopped answering"
TIME_OVER: Final = f"the conversations reached their time limit of 8 minutes: {REMEDY}"
RUN_S: Final = 480.0
"""The time limit in seconds for all conversations of a run; vectors that are due later are untested."""
UNANSWERED_MAX: Final = 5
"""After this many vectors with late or missing answers, no vector is played again or reduced."""
SILENT_MAX: Final = 3
"""If a request code was never answered in this many vectors, further vectors with this code are not played."""
PATIENCE_MS: Final = 2_000
"""How many ms to wait for an answer after `UNANSWERED_MAX` vectors had late or missing answers."""
TRIES: Final = 3
SMALLER_S: Final = 60.0
"""The time limit in seconds for reducing all conversations of a run."""
BESIDE: Final = 8
"""The maximum number of waiting vectors that are played at once."""
PROMPT_MS: Final = 100
SMALLEST_WAIT_MS: Final = 2_000
"""A conversation that waits longer than this, in ms, is not reduced, because the reduction would take minutes."""


@frozen
class Seen:
    """The evidence for a clause without a recorded conversation."""

    id: str
    title: str


@frozen
class Result:
    """The result of one vector, or of a check of a load or race test."""

    vector: Vector | Seen
    clause: Clause
    outcome: Outcome
    why: str = ""
    """The reason for the outcome, in one sentence; empty for PASS."""
    differences: tuple[Difference, ...] = ()
    spoken: tuple[RecordedFrame, ...] = ()
    """All frames of the conversation in which a difference was found."""
    left_out: int = 0
    """The number of steps that the reduced conversation omits."""
    seconds: float = 0.0


@define(eq=False)
class Suite:
    """One run against a broker. Invariant: when `run` returns, `results` contains each chosen vector once, in order."""

    place: Place
    policy: str
    run_name: str
    """The part of the topic and group names that identifies this run."""
    scans: bool = field(default=Factory(lambda self: self.policy.startswith("rocketmq"), takes_self=True))
    """Whether the broker checks deadlines in RocketMQ's five-second scan."""
    restart: Callable[[], None] | None = None
    """Restarts the broker; None if longpoll did not start the broker."""
    told: Callable[[Result], None] = lambda _result: None
    makes_smaller: bool = True
    declared: set[Capability] = field(factory=set)
    denied: set[Capability] = field(factory=set)
    capabilities: set[Capability] = field(factory=set)
    silenced_by: list[str] = field(factory=list)
    """The vectors after which the broker stopped answering."""
    echo: Echo | None = None
    """Measures the latency during the run. If it is None, every late answer counts as the broker's fault."""
    limit_s: float = RUN_S
    unanswered: int = 0
    """The number of vectors that failed because of late or missing answers."""
    smaller_s: float = SMALLER_S
    """The remaining time for reducing conversations."""
    _silent: dict[int, list[str]] = field(factory=dict)
    """Maps a request code to the vectors in which requests with the code were not answered; empty once one was
    answered."""
    _at_first: Health | None = None
    """The broker's health at the start, so that a request which it never supported does not count as a crash."""
    _gone: bool = False
    _lives: Iterator[int] = field(factory=itertools.count)
    """Numbers that make the topic and group names of each playing of a vector unique, also between threads."""

    def find(self) -> None:
        """Find the broker's capabilities. Raises SilentError."""
        settled = self.declared | self.denied
        self.capabilities = (find(self.place, self.run_name, settled) | self.declared) - self.denied

    def run(self, vectors: Sequence[Vector]) -> list[Result]:
        """Play the vectors."""
        self._at_first = self._health()
        if None in self._at_first[:2]:
            raise SilentError("the broker does not answer a request to create a topic, or a send")
        results: dict[str, Result] = {}

        def keep(result: Result) -> None:
            results[result.vector.id] = result
            self.told(result)

        applying = []
        for vector in vectors:
            why = self.why_not(vector)
            if why:
                keep(Result(vector, BY_VECTOR[vector.id], "UNTESTED", why))
            else:
                applying.append(vector)
        end_s = time.monotonic() + self.limit_s
        for part in self._parts(applying):
            for result in self._play(part, TIME_OVER if time.monotonic() > end_s else ""):
                keep(result)
        return [results[vector.id] for vector in vectors]

    def _parts(self, vectors: Sequence[Vector]) -> Iterator[Sequence[Vector]]:
        """Yield groups of vectors to play at once, because playing one by one takes too long on a slow network."""
        alone = BESIDE if self.echo is not None and self.echo.usual_ms() > PROMPT_MS else 1
        for waits, size in ((False, alone), (True, BESIDE)):
            group = [vector for vector in vectors if (vector.wait_ms >= PROMPT_MS) == waits]
            yield from (group[start : start + size] for start in range(0, len(group), size))

    def _play(self, part: Sequence[Vector], why_not: str) -> list[Result]:
        left_out = {vector.id: why for vector in part if (why := why_not or self._silence(vector))}
        playable = [vector for vector in part if vector.id not in left_out]
        found = self._beside(playable) if len(playable) > 1 else [self._alone(vector) for vector in playable]
        return found + [
            Result(vector, BY_VECTOR[vector.id], "UNTESTED", left_out[vector.id])
            for vector in part
            if vector.id in left_out
        ]

    def why_not(self, vector: Vector) -> str:
        """Returns why a vector does not apply to this broker; empty if the vector applies."""
        clause = BY_VECTOR[vector.id]
        needed, lacking = PROFILES[vector.profile]
        if vector.wait_ms < PROMPT_MS and vector.profile != "nolongpoll":
            needed -= {"long-polling"}
        missing = (needed | clause.needs | vector.needs) - self.capabilities
        if missing:
            return f"the broker lacks: {', '.join(sorted(missing))}"
        unwanted = (lacking | clause.lacks) & self.capabilities
        if unwanted:
            return f"only for brokers without: {', '.join(sorted(unwanted))}"
        if not self.scans and is_of_the_scan(vector):
            return "recorded from a scan every five seconds, and this policy has exact deadlines"
        return ""

    def _alone(self, vector: Vector) -> Result:
        """Play a vector until it passes or has failed often enough, then check that the broker still works."""
        if self._gone:
            return self._untested(vector)
        result = self._try(vector)
        for _ in range(TRIES - 1):
            may_be_late = result.outcome == "UNTESTED" or (result.outcome == "FAIL" and _is_of_time(result))
            ends = not may_be_late or self.unanswered >= UNANSWERED_MAX or vector.profile == "store"
            if ends or not self._is_well():
                break
            result = self._try(vector)
        self.unanswered += result.outcome == "FAIL" and _is_of_time(result)
        if self.unanswered >= UNANSWERED_MAX:
            self.place.answer_ms = PATIENCE_MS
        if result.outcome in BAD and not self._is_well():
            return self._silenced(vector, result)
        is_smaller = self.makes_smaller and self.unanswered < UNANSWERED_MAX
        if result.outcome == "FAIL" and is_smaller and vector.wait_ms < SMALLEST_WAIT_MS:
            return self._smaller(vector, result)
        return result

    def _beside(self, vectors: Sequence[Vector]) -> list[Result]:
        if self._gone:
            return [self._untested(vector) for vector in vectors]
        with ThreadPoolExecutor(BESIDE) as pool:
            found = list(pool.map(self._try, vectors))
        if all(result.outcome not in BAD for result in found):
            return found
        if not self._is_well():
            if self.restart is None:
                # Of the vectors that were played at once, one stopped the broker, but it is unknown which one did.
                self._gone = True
                self.silenced_by += [result.vector.id for result in found if result.outcome in BAD]
                return [_failed(result) if result.outcome in BAD else result for result in found]
            # Revive the broker if it is dead, and then play each vector alone.
            self._revive()
            return [self._alone(vector) for vector in vectors]
        pairs = zip(vectors, found, strict=True)
        return [self._alone(vector) if result.outcome in BAD else result for vector, result in pairs]

    def _try(self, vector: Vector) -> Result:
        begun_s = time.monotonic()
        named = vector.named_for(self.run_name, next(self._lives))
        clause = BY_VECTOR[vector.id]
        try:
            played = play(named, self.place)
        except SilentError as error:
            return Result(vector, clause, "FAIL", str(error), seconds=time.monotonic() - begun_s)
        differences = tuple(compare(named.case, played.case, RECORDED_AS, played.variables))
        outcome, why = self._outcome(vector, clause, differences, played.case)
        self._note(vector, played.case)
        worst_ms = self.echo.worst_ms(begun_s) if self.echo is not None else 0.0
        may_be_late = vector.wait_ms >= PROMPT_MS or any(each.is_of_time for each in differences)
        if outcome == "FAIL" and worst_ms > SLOW_MS and may_be_late:
            outcome, why = "UNTESTED", too_slow(worst_ms)
        spoken = tuple(played.conversation.spoken) if outcome != "PASS" else ()
        return Result(vector, clause, outcome, why, differences, spoken, 0, time.monotonic() - begun_s)

    def _outcome(
        self, vector: Vector, clause: Clause, differences: Sequence[Difference], case: Mapping[str, Any]
    ) -> tuple[Outcome, str]:
        meant = intended_difference(self.policy).get(vector.id) if vector.version == VERSIONS.get(self.policy) else None
        if meant is not None:
            code = (case.get("response") or {}).get("code")
            if differences and code == meant.code:
                return "NON-STRICT", meant.why
            return "FAIL", f"this policy should answer {meant.code}, but the broker answered {code}: {meant.why}"
        if not differences:
            return "PASS", ""
        unknown = _unknown_code(vector.case, case)
        if unknown is not None:
            return "UNIMPLEMENTED", f"the broker does not know request {unknown}"
        return ("FAIL" if clause.level == "MUST" else "NON-STRICT"), str(differences[0])

    def _note(self, vector: Vector, case: Mapping[str, Any]) -> None:
        for one, other in _pairs(vector.case, case):
            if "code" in one and other.get("response") is not None:
                self._silent[one["code"]] = []
            elif "code" in one and one.get("response") is not None:
                seen = self._silent.setdefault(one["code"], [vector.id])
                if seen and vector.id not in seen:
                    seen.append(vector.id)

    def _silence(self, vector: Vector) -> str:
        """Return a sentence about a request code in the vector that the broker never answers, or an empty text."""
        codes = {step["code"] for step in (*vector.steps(), vector.case["request"]) if "code" in step}
        silent = [code for code in sorted(codes) if len(self._silent.get(code, ())) >= SILENT_MAX]
        return f"the broker never answers request {silent[0]}: see {self._silent[silent[0]][0]}" if silent else ""

    def _smaller(self, vector: Vector, result: Result) -> Result:
        def again(part: Vector) -> tuple[Difference, ...]:
            if self.smaller_s <= 0:
                return ()
            tried = self._try(part)
            self.smaller_s -= tried.seconds
            return tried.differences

        less, left_out = minimise(vector, result.differences, again)
        if not left_out:
            return result
        shown = self._try(less)
        if not shown.differences:
            return result
        return evolve(result, differences=shown.differences, spoken=shown.spoken, left_out=left_out, why=shown.why)

    def _is_well(self) -> bool:
        # Try more than once, because a host pause can look like a broker that stopped answering.
        return any(self._health() == self._at_first for _ in range(TRIES))

    def _health(self) -> Health:
        return health(self.place, f"{self.run_name}{next(self._lives)}")

    def _silenced(self, vector: Vector, result: Result) -> Result:
        self.silenced_by.append(vector.id)
        self._revive()
        failed = _failed(result)
        return evolve(failed, why=f"{STOPPED} after it; {failed.why}")

    def _revive(self) -> None:
        if self.restart is None:
            self._gone = True
            return
        try:
            self.restart()
            self._gone = not self._is_well()
        except SilentError:
            self._gone = True

    def _untested(self, vector: Vector | Seen) -> Result:
        by = f" after {self.silenced_by[-1]}" if self.silenced_by else ""
        return Result(vector, BY_VECTOR[vector.id], "UNTESTED", f"{STOPPED}{by}")

    def serves(self) -> bool:
        """Whether the broker still works as it did at the start of the run."""
        if self._at_first is None:
            self._at_first = self._health()
        return not self._gone and self._is_well()

    def untested(self, name: str, why: str = "") -> Result:
        """Return the result of a load or race check that did not run, by default because the broker stopped working."""
        seen = Seen(name, BY_VECTOR[name].sentence)
        return Result(seen, BY_VECTOR[name], "UNTESTED", why) if why else self._untested(seen)


def _failed(result: Result) -> Result:
    """Turn the result of a vector into a failure, because the broker stopped answering after the vector."""
    return evolve(result, outcome="FAIL", why=str(result.differences[0]) if result.differences else result.why)


def _is_of_time(result: Result) -> bool:
    return any(each.is_of_time for each in result.differences)


def _pairs(
    recorded: Mapping[str, Any], case: Mapping[str, Any]
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield each recorded step with its played step, and finally the recorded request with the played request."""
    for part in ("setup", "during", "after"):
        yield from zip(recorded.get(part, ()), case.get(part, ()), strict=True)
    yield {**recorded["request"], "response": recorded["response"]}, {"response": case.get("response")}


def _unknown_code(recorded: Mapping[str, Any], case: Mapping[str, Any]) -> int | None:
    """Return the code of a request that the tested broker does not know but the recorded broker knew."""
    for one, other in _pairs(recorded, case):
        codes = [(side.get("response") or {}).get("code") for side in (one, other)]
        if codes[1] == UNKNOWN_CODE and codes[0] not in {None, UNKNOWN_CODE}:
            return int(one.get("code", 0))
    return None


def by_clause(results: Sequence[Result]) -> dict[str, Outcome]:
    """Returns the outcome of each clause that has a chosen vector, in the order of the clauses."""
    found: dict[str, Outcome] = {}
    for clause in CLAUSES:
        outcomes = {result.outcome for result in results if result.clause.id == clause.id}
        for outcome in reversed(OUTCOMES):
            if outcome in outcomes:
                found[clause.id] = outcome
    return found
