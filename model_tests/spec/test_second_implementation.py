"""A second implementation of two policies at `tiny`, written from docs/spec.md, finds the pinned counts."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator
from typing import Any, TypeAlias

import pytest

from longpoll_spec.engines.manifest import pinned

State: TypeAlias = dict[str, Any]
Step: TypeAlias = tuple[str, State]
REQUESTS, MESSAGES, HOLD_TICKS, SCAN_TICKS = (0, 1), 1, 1, 2
LISTED = ("held", "taken", "kept")
START = {"log": 0, "visible": 0, "running": True, "next": SCAN_TICKS, "dispatcher": "idle", "scanner": "idle"}
ANSWERED = {"phase": "idle", "deadline": 0, "due": False, "open": False}
SLOT = {"phase": "idle", "offset": 0, "deadline": 0, "copies": 0, "open": False, "due": False}


def more(s: State, r: int) -> bool:
    return bool(s[f"offset{r}"] < s["visible"])


def changed(s: State, r: int | None = None, /, **values: Any) -> State:
    return s | {f"{name}{'' if r is None else r}": value for name, value in values.items()}


def put(s: State, those: Container[str], **values: Any) -> State:
    for r in REQUESTS:
        if s[f"phase{r}"] in those:
            s = changed(s, r, **values)
    return s


def requests(s: State, strict: bool, free: bool) -> Iterator[Step]:
    for r in REQUESTS:
        phase, copies = s[f"phase{r}"], s[f"copies{r}"]
        queued = {"phase": "queued", "copies": copies + 1, "due": False}
        answered = {"offset": s["visible"]} if more(s, r) else {}
        if phase == "pulling":
            found = {"phase": "idle", "deadline": 0, "open": False, **answered}
            yield "pull_read", changed(s, r, **found if more(s, r) else {"phase": "missed"})
        if phase == "missed" and free:
            yield "hold", changed(s, r, **ANSWERED if strict and not s["running"] else {"phase": "held", "due": strict})
        if s[f"due{r}"] and free and copies < 2:
            yield "recheck", changed(s, r, **queued if phase == "held" and more(s, r) else {"due": False})
        for name, who in (("notify_each", "dispatcher"), ("scan_each", "scanner")):
            mine = "" if strict else f"_by_{who}"
            if s[who] == "walking" and phase == f"taken{mine}" and copies < 2:
                wakes = more(s, r) or s[f"deadline{r}"] == 0
                yield name, changed(s, r, **queued if wakes else {"phase": f"kept{mine}"})
        if strict and phase == "held" and s["running"] and s[f"deadline{r}"] == 0 and free and copies < 2:
            yield "expire", changed(s, r, **queued)
        if copies > 0:
            ended = {"phase": "idle", "deadline": 0} if phase == "queued" else {}
            yield "run", changed(s, r, copies=copies - 1, open=False, **answered, **ended)


def urgent(s: State, strict: bool) -> Iterator[Step]:
    free = not strict or "walking" not in (s["dispatcher"], s["scanner"])
    empty = strict and not any(s[f"phase{r}"].startswith(LISTED) for r in REQUESTS)
    yield from requests(s, strict, free)
    round_is_due = s["running"] and s["scanner"] == "idle" and s["next"] == 0
    for name, who in (("notify", "dispatcher"), ("scan", "scanner")):
        mine = "" if strict else f"_by_{who}"
        if (s[who] == "due" or (who == "scanner" and round_is_due)) and (free or empty):
            then = changed(s, next=SCAN_TICKS) if who == "scanner" and round_is_due else s
            then = put(then, {"held"}, phase=f"taken{mine}")
            yield f"{name}_start", changed(then, **{who: "idle" if empty else "walking"})
        if s[who] == "walking" and all(s[f"phase{r}"] != f"taken{mine}" for r in REQUESTS):
            back = ANSWERED if strict and not s["running"] else {"phase": "held"}
            yield f"{name}_end", changed(put(s, {f"kept{mine}"}, **back), **{who: "idle"})


def others(s: State, strict: bool, waits: bool) -> Iterator[Step]:
    """The steps of actions that are not urgent, which include `make_visible` except in `strict`."""
    if s["running"] and s["visible"] < s["log"] and s["dispatcher"] == "idle":
        waits |= strict
        yield "make_visible", changed(s, visible=s["visible"] + 1, dispatcher="due")
    if s["running"] and s["log"] < MESSAGES:
        yield "append", changed(s, log=s["log"] + 1)
    for r in REQUESTS:
        phase, copies = s[f"phase{r}"], s[f"copies{r}"]
        ends = ANSWERED if strict else {"phase": "idle", "deadline": 0}
        if s["running"] and phase == "idle" and not s[f"open{r}"]:
            yield "next_pull", changed(s, r, phase="pulling", deadline=HOLD_TICKS, open=True)
        if phase == "queued" and copies > 0:
            yield "executor_rejects", changed(s, r, copies=copies - 1, **ends)
        for who, after in (("dispatcher", "due"), ("scanner", "idle")):
            mine = {"taken", "kept"} if strict else {f"taken_by_{who}", f"kept_by_{who}"}
            if s[who] == "walking" and phase in mine and phase.startswith("taken"):
                one = changed(s, r, **ends)
                rest = changed(put(s, mine, **ends), **{who: after})
                yield "notifier_throws", one if strict else rest
    if not waits:
        less = {name: max(s[name] - 1, 0) for name in ("next", *(f"deadline{r}" for r in REQUESTS))}
        yield "tick", s | less
    if s["running"] and (not strict or "walking" not in (s["dispatcher"], s["scanner"])):
        yield "stop", changed(put(s, {"held"} if strict else (), **ANSWERED), running=False, next=0)


def wrong(name: str, s: State, t: State) -> Iterator[str]:
    for r in REQUESTS:
        before, lost = (
            u[f"phase{r}"] == "held"
            and more(u, r)
            and not u[f"due{r}"]
            and "due" not in (u["dispatcher"], u["scanner"])
            for u in (s, t)
        )
        stood, stands = (not u[f"open{r}"] or u[f"phase{r}"] != "idle" or u[f"copies{r}"] > 0 for u in (s, t))
        there, late = s[f"phase{r}"] != "idle", s[f"deadline{r}"] == 0
        found = {
            "no_lost_wakeup": lost,
            "lost_by_hold": lost and not before and name == "hold",
            "lost_by_keep": lost and not before and name in {"notify_end", "scan_end", "notifier_throws"},
            "queued_by_deadline": name == "tick" and s[f"phase{r}"].startswith(LISTED) and late,
            "answered_by_deadline": name == "tick" and there and late,
            "woken_within": name == "tick" and s["running"] and there and s[f"offset{r}"] < s["log"],
            "nothing_dropped": not stands,
            "dropped_by_reject": stood and not stands and name == "executor_rejects",
            "dropped_by_throw": stood and not stands and name == "notifier_throws",
            "answered_on_stop": not t["running"] and t[f"phase{r}"] == "held",
        }
        yield from (each for each, broken in found.items() if broken)


@pytest.mark.parametrize("policy", ["strict", "rocketmq-4.9"])
def test_a_program_written_from_the_page_finds_the_pinned_numbers(policy: str) -> None:
    start = START | {f"{name}{r}": value for r in REQUESTS for name, value in SLOT.items()}
    depths, transitions, violated = {tuple(start.values()): 0}, 0, dict[str, int]()
    todo = deque([start])
    while todo:
        state = todo.popleft()
        depth = depths[tuple(state.values())]
        steps = list(urgent(state, policy == "strict"))
        for name, then in [*steps, *others(state, policy == "strict", waits=bool(steps))]:
            transitions += 1
            for each in wrong(name, state, then):
                violated.setdefault(each, depth + 1)
            if (key := tuple(then.values())) not in depths:
                depths[key] = depth + 1
                todo.append(then)

    (entry,) = (each for each in pinned() if (each.policy, each.bounds) == (policy, "tiny"))
    assert (len(depths), transitions, max(depths.values())) == (entry.distinct_states, entry.transitions, entry.depth)
    assert violated == entry.violated
