"""Compare recorded answers with those of a broker; report each difference and its position in the answer as a sentence.

The comparison covers code, flag, presence of a remark, extension fields, messages, JSON bodies, pushes and times.
Values that depend on the run (log offsets, store times, addresses) and the texts of remarks are ignored.

`export.patterns` defines the allowed variations. `suite` derives the outcome of a clause.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

from attrs import frozen

from longpoll_conform.connection import NO_ANSWER
from longpoll_conform.export import (
    BEGIN,
    CLOSED,
    SET,
    SILENCE,
    SOME,
    UNREADABLE,
    filled,
    fits,
    masked,
    pattern_of,
    seen,
)

PROMPT_MS: Final = 900
"""How many ms late an answer may arrive if its recorded answer was prompt; a busy host needs this tolerance."""
SHOWN: Final = 120
"""The maximum number of characters of a value in the sentence about a difference."""
Variables = Mapping[str, str]


@frozen
class Difference:
    """A difference between the expected answer and the received answer."""

    where: str
    """The step and the position in the answer to this step, such as `response.extFields.nextBeginOffset`."""
    expected: str
    got: str

    @property
    def is_of_time(self) -> bool:
        """Whether a host pause can explain the difference, because an answer was late or missing."""
        return self.where.endswith("when") or self.got == NO_ANSWER or "to come to" in self.expected

    def __str__(self) -> str:
        return f"{self.where}: expected {self.expected}, got {self.got}"


def compare(
    expected: Mapping[str, Any], got: Mapping[str, Any], recorded_as: Variables, found_as: Variables
) -> list[Difference]:
    """Return all differences of a played case from the recorded case.

    `recorded_as` contains the names of the recorded broker, and `found_as` those of the tested broker.
    """
    found = [Difference("conversation", "to go on", error) for error in got.get("errors", ())]
    vary = set(expected.get("normalised", ()))
    sides = _Sides(recorded_as, found_as)
    for part in ("setup", "during", "after"):
        none: Mapping[str, Any] = {}
        pairs = zip_longest(expected.get(part, ()), got.get(part, ()), fillvalue=none)
        for number, (one, other) in enumerate(pairs):
            found += sides.step(f"{part}[{number}]", part, one, other, vary)
    found += sides.answers("response", expected["response"], got.get("response"), vary)
    if expected.get("pushes") is not None:
        found += sides.values("pushes", expected["pushes"], got.get("pushes"))
    return found + list(_timing(expected, got))


def _timing(expected: Mapping[str, Any], got: Mapping[str, Any]) -> Iterator[Difference]:
    allowed, held_ms = expected.get("timing"), got.get("held_ms", 0)
    if not allowed or got.get("response") is None:
        return
    if not allowed["not_before_ms"] <= held_ms <= allowed["not_after_ms"]:
        window = f"{allowed['not_before_ms']} to {allowed['not_after_ms']} ms ({allowed['kind']})"
        yield Difference("response, when", window, f"{held_ms} ms")


@frozen
class _Sides:
    recorded_as: Variables
    found_as: Variables

    def step(
        self, where: str, part: str, one: Mapping[str, Any], other: Mapping[str, Any], vary: set[str]
    ) -> Iterator[Difference]:
        """Compare a recorded step with the played step; in a preparation, compare only the response code."""
        if "failed" in other and "failed" not in one:
            yield Difference(where, f"the queue to come to {one['until_max_offset']}", f"{other['failed']}")
        if "response" not in one:
            return
        if part == "setup":
            codes = [(each.get("response") or {}).get("code") for each in (one, other)]
            if codes[0] != codes[1]:
                yield Difference(f"{where}.code", _text(codes[0]), _text(codes[1]))
            return
        if "held_ms" in one:
            late_ms = abs(other.get("held_ms", 0) - one["held_ms"])
            if late_ms > one.get("tolerance_ms", PROMPT_MS):
                yield Difference(f"{where}, when", f"{one['held_ms']} ms", f"{other.get('held_ms')} ms")
        yield from self.answers(where, one["response"], other.get("response"), vary | set(one.get("normalised", ())))

    def answers(self, where: str, one: Any, other: Any, vary: set[str]) -> Iterator[Difference]:
        pattern = pattern_of(one, vary, self.recorded_as)
        answer = dict(CLOSED) if other and "closed" in other else seen(other) if other else dict(SILENCE)
        yield from differences(where, pattern, answer, self.found_as)

    def values(self, where: str, one: Any, other: Any) -> Iterator[Difference]:
        yield from differences(where, masked(one, self.recorded_as), other, self.found_as)


def differences(where: str, pattern: Any, value: Any, names: Variables) -> Iterator[Difference]:
    """Return the differences of a value from a pattern. Convert a whole answer with `seen` before the call."""
    if isinstance(pattern, Mapping) and value in (SILENCE, CLOSED) and pattern != value:
        yield Difference(where, _text(pattern), _text(value))
    elif isinstance(value, Mapping) and UNREADABLE in value:
        yield Difference(where, "messages", value[UNREADABLE])
    elif isinstance(pattern, Mapping) and isinstance(value, Mapping):
        is_part = list(pattern) == [SOME]
        wanted = {filled(name, names): each for name, each in (pattern[SOME] if is_part else pattern).items()}
        yield from _of_object(
            where, wanted, {name: value[name] for name in value if name in wanted or not is_part}, names
        )
    elif isinstance(value, list) and isinstance(pattern, list | Mapping):
        yield from _of_list(where, pattern, value, names)
    elif not (fits(pattern, value, names) if isinstance(pattern, str) else pattern == value):
        yield Difference(where, _text(pattern), _text(value))


def _of_object(
    where: str, wanted: Mapping[str, Any], found: Mapping[str, Any], names: Variables
) -> Iterator[Difference]:
    for name in sorted({*wanted, *found}):
        if name not in wanted:
            yield Difference(f"{where}.{name}", "nothing", _text(found[name]))
        elif name not in found:
            yield Difference(f"{where}.{name}", _text(wanted[name]), "nothing")
        else:
            yield from differences(f"{where}.{name}", wanted[name], found[name], names)


def _of_list(where: str, pattern: Any, found: Sequence[Any], names: Variables) -> Iterator[Difference]:
    if isinstance(pattern, Mapping) and SET in pattern:
        yield from _of_set(where, pattern[SET], found, names)
        return
    is_begin = isinstance(pattern, Mapping) and BEGIN in pattern
    wanted: Any = pattern[BEGIN] if is_begin else pattern
    values = found[: len(wanted)] if is_begin else found
    if len(wanted) != len(values):
        yield Difference(f"{where}, how many", str(len(wanted)), str(len(values)))
        return
    for number, (one, other) in enumerate(zip(wanted, values, strict=True)):
        yield from differences(f"{where}[{number}]", one, other, names)


def _of_set(where: str, wanted: Sequence[Any], found: Sequence[Any], names: Variables) -> Iterator[Difference]:
    """Match each wanted value with a found value that no other wanted value matches."""
    left = list(found)
    for pattern in wanted:
        taken = next((each for each in left if not any(differences("", pattern, each, names))), None)
        if taken is None:
            yield Difference(where, _text(pattern), _text(found))
            return
        left.remove(taken)
    if left:
        yield Difference(f"{where}, how many", str(len(wanted)), str(len(found)))


def _text(value: Any) -> str:
    if value is None or value == SILENCE:
        return NO_ANSWER
    if value == CLOSED:
        return "the connection closed"
    whole = json.dumps(value, ensure_ascii=False)
    return whole if len(whole) <= SHOWN else f"{whole[: SHOWN - 3]}..."
