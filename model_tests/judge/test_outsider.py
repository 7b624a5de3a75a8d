"""Histories that an outside author wrote from docs/history.md alone, each with its right verdict."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from model_tests.judge.second.compare import Judged, judge_it
from model_tests.judge.second.judge import weigh
from model_tests.judge.second.observer import History
from model_tests.support.judge.histories import follow_pieces

from longpoll_judge.contract.result import NO_LOST_WAKEUP, Result
from longpoll_judge.evidence.source_survey import gaps_of
from longpoll_judge.run.pipeline import judge, restart_notes
from longpoll_judge.show.report import told_of

CASES: Final = Path(__file__).parent / "cases"
RIGHT: Final[dict[str, tuple[str, str]]] = {
    "L_compaction": ("unknown", "pull.found.complete"),
    "L_kill_behind_proxy": ("unknown", "log.acknowledged.once"),
    "L_kill_commit_none": ("unknown", "commit.told.some"),
    "L_kill_max_falls": ("unknown", "pull.max.never_falls"),
    "L_slave_same_name": ("unknown", "pull.none.true"),
    "ack_other_id": ("invalid", "send.acknowledged.identity"),
    "acked_and_gone": ("unknown", "pull.min.kept"),
    "batch_reversed": ("invalid", "send.batch.gapless"),
    "batch_short": ("invalid", "send.batch.gapless"),
    "batch_torn": ("invalid", "send.batch.gapless"),
    "broker_stood_still": ("invalid", "pull.wake.prompt"),
    "busy_below_limit": ("valid", ""),
    "commit_names_no_broker": ("unknown", "evidence.field_missing"),
    "committed_by_no_named_broker": ("valid", ""),
    "delayed_very_late": ("unknown", "message.overdue"),
    "delivered_before_sent_by_id": ("invalid", "send.delivered.after_request"),
    "delivered_before_send_two_sources": ("unknown", "send.delivered.after_request"),
    "delivered_then_denied": ("invalid", "pull.max.never_falls"),
    "delivery_named_elsewhere": ("unknown", "evidence.not_judged"),
    "expired_early": ("invalid", "pull.hold.not_early"),
    "expired_twice": ("invalid", "pull.take.once"),
    "expression_left_out": ("unknown", "evidence.not_judged"),
    "found_at_max": ("invalid", "pull.found.within"),
    "group_found_busy": ("unknown", "evidence.not_judged"),
    "hold_names_no_queue": ("unknown", "evidence.field_missing"),
    "id_list_short": ("invalid", "pull.found.identified"),
    "illegal_held": ("invalid", "pull.unheld.prompt"),
    "kept_after_run": ("invalid", "pull.take.once"),
    "kept_twice": ("invalid", "pull.take.once"),
    "log_lost_by_orderly_restart": ("unknown", "pull.max.never_falls"),
    "lost_of_no_named_broker": ("unknown", "evidence.lost"),
    "min_acked_twice_two_sources": ("invalid", "send.sequential"),
    "min_falls_other_connection": ("invalid", "pull.min.never_falls"),
    "min_mayhold_left_out": ("unknown", ""),
    "min_pull_commits_lower": ("valid", ""),
    "min_removing_20": ("unknown", "pull.passed.none_match"),
    "min_removing_found": ("unknown", "pull.found.complete"),
    "min_slow_immediate": ("unknown", "pull.unheld.prompt"),
    "next_negative": ("invalid", "pull.none.next"),
    "offset_after_restart": ("valid", ""),
    "offset_lost_by_restart": ("unknown", "commit.told.some"),
    "offset_of_deleted_topic": ("unknown", "commit.told.written"),
    "offset_left_out": ("unknown", "evidence.field_missing"),
    "one_id_in_two_brokers": ("unknown", "message.stored.once"),
    "passed_beyond_max": ("invalid", "pull.found.within"),
    "passed_beyond_seen": ("invalid", "pull.max.never_falls"),
    "queries_refused": ("unknown", "evidence.not_judged"),
    "refuses_nearly_all": ("unknown", "evidence.not_judged"),
    "recheck_saw_it": ("unknown", "pull.wake.prompt"),
    "refused_then_delivered": ("unknown", "message.committed"),
    "removed_between_20": ("unknown", "pull.filter.agrees"),
    "removed_between_found": ("unknown", "pull.filter.agrees"),
    # The client's own pull lowered the offset, which is not a violation. The excerpt leaves out some events.
    "retention-4.9.7-commit": ("unknown", "evidence.excerpt"),
    "retention-4.9.7-found": ("unknown", "pull.found.complete"),
    "rolled_back_delivered": ("invalid", "message.committed"),
    "run_twice": ("invalid", "pull.take.once"),
    "same_filter_disagrees": ("invalid", "pull.filter.agrees"),
    "same_filter_gap": ("invalid", "pull.filter.agrees"),
    "scan_takes_expired": ("valid", ""),
    "send_answered_19": ("invalid", "send.code.known"),
    "send_slow": ("unknown", "send.answered"),
    "sends_inverted_two_sources": ("invalid", "send.sequential"),
    "sends_refused": ("unknown", "evidence.not_judged"),
    "take_without_hold": ("invalid", "pull.step.held"),
    "taken_after_expiry": ("invalid", "pull.take.once"),
    "stored_elsewhere_lost": ("unknown", "message.lost"),
    "taken_twice": ("invalid", "pull.take.once"),
    "tx_not_woken": ("invalid", "pull.wake.prompt"),
    "value_changes_over_restart": ("invalid", "message.one_value"),
}
"""Folder of a history -> its verdict, and a clause that the report names."""


def clauses(result: Result) -> set[str]:
    return {told.clause for finding in result.findings for told in finding.told()} | {
        str(gap["clause"]) for gap in result.gaps
    }


@pytest.mark.parametrize("name", RIGHT)
def test_a_history_from_outside_has_its_verdict(name: str) -> None:
    verdict, clause = RIGHT[name]
    result = judge([CASES / name], engine="local")
    assert result.verdict == verdict, (result.findings, result.gaps)
    assert not clause or clause in clauses(result)


def tried_in_vain(events: Events) -> Events:
    border = next(place for place, one in enumerate(events) if one.get("connection") == "c2")
    tried = [
        {"event": f"connection_{what}", "source": "s", "connection": f"v{second}"} | at(second)
        for second in (5, 7)
        for what in ("opened", "closed")
    ]
    return [*events[:border], *tried, *events[border:]]


@pytest.mark.parametrize("name", ["L_kill_behind_proxy", "L_kill_commit_none", "L_kill_max_falls"])
def test_a_note_says_when_the_broker_restarted(tmp_path: Path, name: str) -> None:
    """The first note has the begin and end of the restart, also while the history grows.

    If a connection is used after the assumed restart, there is no note.
    """
    shutil.copytree(CASES / name, tmp_path / "growing")
    note = judge([CASES / name], engine="local").notes[0]
    assert (note["clause"], note["count"]) == ("evidence.restart", 1)
    assert "restarted, or had no client, between 2023-11-14T22:13:" in note["why"]

    assert follow_pieces(tmp_path / "growing", 2).last.notes[:1] == [note]
    neighbour(tmp_path, name, tried_in_vain, "unknown", "")
    assert judge([tmp_path / "history"], engine="local").notes == [note]
    neighbour(tmp_path, name, one_stays_open, "invalid", "")
    assert judge([tmp_path / "history"], engine="local").notes == []


def test_restarts_beyond_five_share_a_note() -> None:
    """A broker whose only client is rarely connected would otherwise get about one note a minute."""
    gaps = gaps_of((minute * 60 * 10**9, (minute * 60 + 9) * 10**9) for minute in range(7))
    context: Any = SimpleNamespace(restarts={"b": gaps})
    *five, more = restart_notes(context)
    assert [note["count"] for note in five] == [1] * 5
    assert more["count"] == 2
    assert more["why"].endswith("between 1970-01-01T00:05:00.000000Z and 1970-01-01T00:06:09.000000Z")


def neighbour(directory: Path, name: str, changed: Callable[[Events], Events], verdict: str, clause: str) -> Judged:
    told = changed([json.loads(line) for line in (CASES / name / "part-000000.ndjson").read_bytes().splitlines()])
    meta = json.loads((CASES / name / "meta.json").read_bytes())
    counts: Counter[str] = Counter()
    for one in told:
        one["sequence"] = counts[one["source"]]
        counts[one["source"]] += 1
    history = History(meta, tuple(told))
    first, second = judge_it(history, directory / "history"), weigh(history.meta, history.events)

    assert (first.verdict, second.verdict) == (verdict, verdict), (first.reasons, second.reasons)
    assert not clause or any(reason.startswith(clause) for reason in first.reasons)
    return first


Events = list[dict[str, Any]]


def power_lost(events: Events) -> Events:
    return [one for one in events if (one["event"], one.get("connection")) != ("connection_closed", "d")]


def one_stays_open(events: Events) -> Events:
    """Let one connection stay open beyond the assumed kill, with an answer after it."""
    *told, asked, answer, stop = power_lost(events)
    later = [one | at(14) | {"connection": "d", "request": "later"} for one in (asked, answer)]
    return [*told, asked, answer, *later, stop]


def killed_later(events: Events, ms: int = 20_000) -> Events:
    at = next(place for place, one in enumerate(events) if one["event"] == "connection_closed")
    later = {"after_ns": ms * 1_000_000, "before_ns": ms * 1_000_000}
    return [*events[:at], *(one | {name: one[name] + late for name, late in later.items()} for one in events[at:])]


def killed_soon(events: Events) -> Events:
    """Kill the broker when its disk lags behind almost as far as permitted."""
    return killed_later(events, 11_900)


def back_at_once(events: Events) -> Events:
    at = next(place for place, one in enumerate(events) if one["event"] == "connection_opened" and place > 4)
    return [
        *events[:at],
        *killed_later([{"event": "connection_closed", "after_ns": 0, "before_ns": 0}, *events[at:]], -5_600)[1:],
    ]


def nothing_lost(events: Events) -> Events:
    return [one | {"code": 0, "offset": 100} if one.get("code") == 22 else one for one in events]


@pytest.mark.parametrize(
    ("name", "changed", "verdict", "clause"),
    [
        ("L_kill_commit_none", one_stays_open, "invalid", "commit.told.some"),
        ("L_kill_commit_none", power_lost, "unknown", "commit.told.some"),
        ("L_kill_commit_none", back_at_once, "invalid", "commit.told.some"),
        ("L_kill_commit_none", killed_soon, "unknown", "commit.told.some"),
        ("L_kill_commit_none", killed_later, "invalid", "commit.told.some"),
        ("L_kill_commit_none", nothing_lost, "valid", ""),
        ("L_kill_max_falls", one_stays_open, "invalid", "pull.max.least"),
        ("L_kill_max_falls", power_lost, "unknown", "pull.max.never_falls"),
        ("L_kill_max_falls", killed_soon, "unknown", "pull.max.never_falls"),
        ("L_kill_max_falls", killed_later, "invalid", "pull.max.least"),
        ("L_kill_behind_proxy", one_stays_open, "invalid", "log.acknowledged.once"),
        ("L_kill_behind_proxy", killed_later, "invalid", "log.acknowledged.once"),
    ],
)
def test_a_restarted_broker_may_lose_recent_messages(
    tmp_path: Path, name: str, changed: Callable[[Events], Events], verdict: str, clause: str
) -> None:
    """All connections closed, so the broker may have restarted. Messages older than 15 s survive a restart."""
    first = neighbour(tmp_path, name, changed, verdict, clause)
    assert verdict == "invalid" or not clause or "after 2023-11-14T22:13" in first.reasons[0]


def test_a_restart_explains_no_offset_beyond_the_end(tmp_path: Path) -> None:
    """A kill loses committed offsets but does not set any, so the clause about the queue's max offset still applies."""

    def beyond_the_end(events: Events) -> Events:
        return [one | {"offset": 10**6} if one.get("offset") == 100 else one for one in nothing_lost(events)]

    neighbour(tmp_path, "L_kill_commit_none", beyond_the_end, "unknown", "commit.told.within")


def one_observer(events: Events) -> Events:
    told = [one | {"source": "s"} for one in events if one["source"] == "s" or "connection" in one]
    return sorted(told, key=lambda one: one["after_ns"])


def both_see_sends(events: Events) -> Events:
    mine = {"source": "u", "connection": "e"}
    told = [one | mine if one.get("request") == "ST0-5-s-20" else one for one in events]
    return sorted(told, key=lambda one: one["after_ns"])


@pytest.mark.parametrize(
    ("changed", "verdict"), [(list, "unknown"), (one_observer, "invalid"), (both_see_sends, "invalid")]
)
def test_a_source_without_sends_may_watch_a_slave(
    tmp_path: Path, changed: Callable[[Events], Events], verdict: str
) -> None:
    """The slave may not have copied the missing messages yet."""
    neighbour(tmp_path, "L_slave_same_name", changed, verdict, "pull.none.true")


def of_other_name(events: Events) -> Events:
    return [one | ({"broker": "slave"} if one["source"] == "u" and "broker" in one else {}) for one in events]


def of_other_name_by_one(events: Events) -> Events:
    return one_observer([one | ({"source": "s"} if "connection" in one else {}) for one in of_other_name(events)])


def slave_alone(events: Events) -> Events:
    return [one for one in of_other_name(events) if one["source"] == "u"]


@pytest.mark.parametrize(
    ("offset", "changed", "verdict"),
    [
        (4, list, "unknown"),
        (4, of_other_name, "unknown"),
        (3, of_other_name, "unknown"),
        (4, of_other_name_by_one, "unknown"),
        (4, slave_alone, "unknown"),
        (4, one_observer, "invalid"),
        (4, both_see_sends, "invalid"),
    ],
)
def test_a_slave_answers_20_at_its_end(
    tmp_path: Path, offset: int, changed: Callable[[Events], Events], verdict: str
) -> None:
    """A slave sends pulls to its master with a 20, even for an offset outside its queue."""

    def passes_nothing(events: Events) -> Events:
        told = {"code": 20, "offset_next": offset}
        return changed([one | (told if one.get("code") == 19 else {}) for one in events])

    neighbour(tmp_path, "L_slave_same_name", passes_nothing, verdict, "pull.passed.next")


@pytest.mark.parametrize(
    ("event", "fields", "verdict"),
    [
        ("recheck", {}, "unknown"),
        ("recheck", {"visible_end": 5}, "valid"),
        ("recheck", {"after_ns": 1_700_000_015_450_000_000, "before_ns": 1_700_000_015_450_001_000}, "valid"),
        ("request_received", {"expression": "a"}, "valid"),
    ],
)
def test_a_recheck_shows_a_message(tmp_path: Path, event: str, fields: dict[str, object], verdict: str) -> None:
    """The broker must answer a pull that accepts the message, although no other event shows the message."""

    def changed(events: Events) -> Events:
        return [one | (fields if one["event"] == event else {}) for one in events]

    neighbour(tmp_path, "recheck_saw_it", changed, verdict, "pull.wake.prompt" if verdict == "unknown" else "")


SEND, ACKNOWLEDGEMENT, FOUND = ("request_received", 310), ("message_acknowledged", -1), ("answer_sent", 0)
OTHER, SHORT = ("ack_other_id", "send.acknowledged.identity"), ("id_list_short", "pull.found.identified")


@pytest.mark.parametrize(
    ("case", "of", "lists", "verdict"),
    [
        (OTHER, SEND, {"ids": [1002], "bodies": [5000002]}, "valid"),
        (OTHER, SEND, {"ids": [1002], "bodies": [5000001]}, "invalid"),
        (OTHER, SEND, {"ids": [1002]}, "valid"),
        (OTHER, SEND, {"ids": [1002], "bodies": [-1]}, "valid"),
        (OTHER, SEND, {"ids": [0], "bodies": [5000001]}, "valid"),
        (OTHER, SEND, {}, "valid"),
        (OTHER, ACKNOWLEDGEMENT, {}, "valid"),
        (OTHER, ACKNOWLEDGEMENT, {"ids": [0], "bodies": [-1]}, "valid"),
        (SHORT, FOUND, {"ids": [1000, 1001, 1002], "bodies": [5000000, 5000001, 5000002]}, "valid"),
        (SHORT, FOUND, {"ids": [1000, 1001, 1002]}, "valid"),
        (SHORT, FOUND, {"bodies": [5000000, 5000001, 5000002]}, "valid"),
        (SHORT, FOUND, {}, "valid"),
        (SHORT, FOUND, {"ids": [1000, 1001, 1002], "bodies": [5000000]}, "invalid"),
        (SHORT, FOUND, {"ids": [1000, 1001, 1002, 0]}, "invalid"),
    ],
)
def test_a_message_is_compared_with_its_send(
    tmp_path: Path, case: tuple[str, str], of: tuple[str, int], lists: dict[str, list[int]], verdict: str
) -> None:
    """Ids and bodies are compared if both events have them. Either all messages of a list have ids, or none has."""

    def changed(events: Events) -> Events:
        return [
            {name: value for name, value in one.items() if name not in {"ids", "bodies"}} | lists
            if (one["event"], one.get("code", -1)) == of
            else one
            for one in events
        ]

    neighbour(tmp_path, case[0], changed, verdict, case[1] if verdict == "invalid" else "")


Change = tuple[str, dict[str, Any] | None]
"""(A request, connection or source, new field values of its events); None removes the events."""
BEGIN_NS: Final = 1_700_000_000_000_000_000


def at(seconds: float) -> dict[str, int]:
    return {"after_ns": BEGIN_NS + round(seconds * 10**9), "before_ns": BEGIN_NS + round(seconds * 10**9) + 1_000}


LATE_PULL: Final[list[Change]] = [
    ("request_received r", at(5)),
    ("connection_opened c", at(3)),
]
UNBOUNDED: Final = {"offset_next": 0, "offset_min": 0, "offset_max": 0}
WOKEN: Final[list[Change]] = [("answer_sent r", at(4.05))]
ONE_LEFT: Final[list[Change]] = [("request_received r3", None), ("answer_sent r3", None)]
NEIGHBOURS: Final[list[tuple[str, list[Change], str, str]]] = [
    ("tx_not_woken", WOKEN, "valid", ""),
    ("tx_not_woken", [("answer_sent r", at(4.2))], "invalid", "pull.wake.prompt"),
    ("tx_not_woken", [("answer_sent r", None)], "invalid", "pull.answered"),
    ("tx_not_woken", LATE_PULL, "invalid", "pull.unheld.prompt"),
    ("tx_not_woken", [*LATE_PULL, ("answer_sent r", at(5.05))], "valid", ""),
    ("tx_not_woken", [("answer_sent r", at(5.05)), ("request_received r", at(4.9))], "unknown", "pull.unheld.prompt"),
    ("tx_not_woken", [("answer_sent r2", {"offset_max": 0})], "invalid", "pull.found.within"),
    ("tx_not_woken", [("request_received r", {"offset": 1}), ("answer_sent r", None)], "invalid", "pull.answered"),
    ("value_changes_over_restart", [("answer_sent r9", {"ids": [1000, 1001, 1002]})], "invalid", "message.one_value"),
    (
        "value_changes_over_restart",
        [("answer_sent r9", {"ids": [1000, 1001, 1002], "bodies": [5000000, 5000001, 5000002]})],
        "valid",
        "",
    ),
    ("value_changes_over_restart", [("source_stopped s", None)], "unknown", "gap source end"),
    ("value_changes_over_restart", [("connection_closed c", None)], "valid", ""),
    (
        "value_changes_over_restart",
        [("connection_closed c", at(4.9)), ("connection_closed p", at(4.9))],
        "valid",
        "",
    ),
    (
        "value_changes_over_restart",
        [
            ("source_started u", at(71)),
            ("connection_opened e", at(71.1)),
            ("request_received r9", at(72)),
            ("answer_sent r9", at(72.1)),
            ("source_stopped u", at(120)),
        ],
        "valid",
        "",
    ),
    ("delivered_before_sent_by_id", [("connection_opened p", None)], "unknown", "send.delivered.after_request"),
    ("delivered_before_sent_by_id", [("request_received h", at(2.9))], "unknown", "send.delivered.after_request"),
    ("delivered_before_sent_by_id", [("request_received h", {"ids": [1002]})], "valid", ""),
    (
        "delivered_before_sent_by_id",
        [("request_received h", {"topic": "U"}), ("answer_sent h", {"topic": "U"})],
        "valid",
        "",
    ),
    ("delivered_before_sent_by_id", [("answer_sent r", at(3.6))], "valid", ""),
    ("min_falls_other_connection", ONE_LEFT, "invalid", "pull.min.never_falls"),
    ("min_falls_other_connection", [*ONE_LEFT, ("connection_opened d", at(1))], "unknown", "pull.min.never_falls"),
    ("delayed_very_late", [("request_received h", {"delay_ms": 23_000})], "unknown", "message.overdue"),
    ("delayed_very_late", [("request_received h", {"delay_ms": 38_000})], "valid", ""),
    ("delayed_very_late", [("request_received h", {"delay_ms": -1, "delay_level": 3})], "unknown", "message.overdue"),
    ("delayed_very_late", [("request_received h", {"delay_ms": -1})], "unknown", "message.overdue"),
    ("delayed_very_late", [("answer_sent z", {"ids": [1002]})], "unknown", "message.lost"),
    ("stored_elsewhere_lost", [("answer_sent h", {"code": 14})], "valid", ""),
    ("stored_elsewhere_lost", [("answer_sent h", {"code": 10})], "unknown", "message.lost"),
    ("stored_elsewhere_lost", [("request_received h", {"queue": 1}), ("answer_sent h", {"queue": 1})], "valid", ""),
    ("stored_elsewhere_lost", [("request_received h", {"transaction": "prepared"})], "valid", ""),
    ("stored_elsewhere_lost", [("request_received h", {"delay_ms": 17_000})], "valid", ""),
    ("stored_elsewhere_lost", [("request_received h", {"delay_ms": 15_000})], "unknown", "message.lost"),
    ("stored_elsewhere_lost", [("answer_sent r", {"ids": [1010, 1011, 0]})], "unknown", "message.lost"),
    ("acked_and_gone", [("answer_sent r", UNBOUNDED | {"offset_next": 10})], "unknown", "pull.illegal.outside"),
    ("acked_and_gone", [("answer_sent r", UNBOUNDED), ("request_received r", {"offset": 5})], "unknown", ""),
    (
        "delayed_very_late",
        [("request_received h", {"delay_ms": 38_000, "bodies": [5]})],
        "unknown",
        "message.one_value",
    ),
    ("tx_not_woken", [*WOKEN, ("request_received h", {"bodies": [5]})], "unknown", "message.one_value"),
    ("tx_not_woken", [*WOKEN, ("request_received h", {"queue": 1})], "unknown", "message.one_value"),
    ("refused_then_delivered", [("request_received h", {"bodies": [5]})], "unknown", "message.committed"),
]


@pytest.mark.parametrize(("name", "changes", "verdict", "clause"), NEIGHBOURS)
def test_both_judges_agree_on_changed_outside_histories(
    tmp_path: Path, name: str, changes: list[Change], verdict: str, clause: str
) -> None:
    def changed(events: Events) -> Events:
        told = []
        for one in events:
            names = {f"{one['event']} {one.get(key, '')}" for key in ("request", "connection", "source")}
            (fields,) = [fields for of, fields in changes if of in names] or [{}]
            told += [one | fields] if fields is not None else []
        return sorted(told, key=lambda one: one["after_ns"])

    neighbour(tmp_path, name, changed, verdict, clause)


@pytest.mark.parametrize(
    ("name", "clause"),
    [("min_removing_found", "pull.found.complete"), ("min_removing_20", "pull.passed.none_match")],
)
@pytest.mark.parametrize(
    ("age_s", "verdict"),
    [(0.003, "invalid"), (0.99, "invalid"), (1.01, "unknown")],
)
def test_retention_removes_nothing_that_is_new(
    tmp_path: Path, name: str, clause: str, age_s: float, verdict: str
) -> None:
    def changed(events: Events) -> Events:
        told = {"source": "s", "broker": "b", "topic": "T", "queue": 0, "queue_offset": 7, "tag": "a"}
        later = [one | at(2) if one.get("request") == "r" and one["event"] == "answer_sent" else one for one in events]
        return [*later[:4], {"event": "message_acknowledged"} | told | at(2 - age_s), *later[4:]]

    def in_order(events: Events) -> Events:
        held = [one | (at(1.999) if one["event"] == "request_received" else {}) for one in changed(events)]
        return sorted(held, key=lambda one: one["after_ns"])

    neighbour(tmp_path, name, in_order, verdict, clause)


@pytest.mark.parametrize(("topic", "verdict"), [("%RETRY%G", "valid"), ("%DLQ%G", "valid"), ("RETRY%G", "invalid")])
def test_a_consumer_may_send_a_message_back_and_send_it_again(tmp_path: Path, topic: str, verdict: str) -> None:
    """The broker itself stored the first copy in a retry topic, so the delivery of that copy comes before the send."""

    def renamed(events: Events) -> Events:
        return [one | ({"topic": topic} if "topic" in one else {}) for one in events]

    neighbour(tmp_path, "delivered_before_sent_by_id", renamed, verdict, "")


def test_every_folder_has_a_verdict() -> None:
    assert {folder.name for folder in CASES.iterdir()} == RIGHT.keys()


def test_a_slow_read_is_not_a_lost_wakeup() -> None:
    """The finding says that the pull was never held, and the rate counts no lost wakeup."""
    result = judge([CASES / "min_slow_immediate"], engine="local")
    (finding,) = result.findings
    assert finding.property != NO_LOST_WAKEUP
    assert "slowly" in finding.why
    assert "(slow over 100.000 ms, a violation over 2050.000 ms)" in finding.why
    assert (result.rates[NO_LOST_WAKEUP].violated, result.rates[NO_LOST_WAKEUP].of) == (0, 0)


def test_a_pause_is_one_cause() -> None:
    """Three pulls of three queues were due in the same pause of 180 ms, so they are reported as one finding."""
    result = judge([CASES / "broker_stood_still"], engine="local")
    (finding,) = result.findings
    assert sum(each.count for each in finding.follows) == 2
    assert finding.why.endswith("3 answers were late at this instant, as if the broker or its host had stood still")
    assert result.rates[NO_LOST_WAKEUP].violated == 3


def test_a_finding_names_its_client_and_its_codes() -> None:
    (finding,) = judge([CASES / "found_at_max"], engine="local").findings
    assert (finding.time, finding.group, finding.connection) == ("2023-11-14T22:13:20.500000Z", "G", "c")
    assert finding.codes == {"request": "11 PULL_MESSAGE", "answer": "0 SUCCESS"}
    assert "answer 0 SUCCESS, group G, connection c, at 2023-11-14T22:13:20.500000Z" in told_of(finding)
