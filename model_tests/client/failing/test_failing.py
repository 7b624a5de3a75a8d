"""The checks of a schedule's results and of its servers, without real failures."""

from __future__ import annotations

import itertools

import attrs
from model_tests.client.failing.accounts import Facts, Happening, Possible, account
from model_tests.client.failing.members import Delivery, Share
from model_tests.client.failing.play import MEMBERS_MAX, convictions, draw
from model_tests.client.failing.sending import Sent

S = 1_000_000_000


def sent(number: int, at_s: float, failures: int = 0, sender: str = "thread") -> Sent:
    return Sent(number, "key", sender, int((at_s - 0.5) * S), int(at_s * S), failures, (0, number))


def given(offset: int, at_s: float, member: str = "a", number: int | None = None) -> Delivery:
    return Delivery(int(at_s * S), member, 0, offset, offset if number is None else number)


GOOD = Facts(
    acknowledged=[sent(number, 1 + number) for number in range(3)],
    deliveries=[given(number, 1.5 + number) for number in range(3)],
    shares=[Share(0, "a", 0, is_ours=True)],
    happenings=[],
    possible=[Possible(0, 30 * S)],
    stored={(0, number): number for number in range(3)},
    is_orderly=True,
)


def test_only_a_known_violation_of_a_broker_is_accepted() -> None:
    """Only the known clause is accepted; another clause or another verdict is a fault."""
    findings = [{"clause": "commit.told.kept", "why": "20"}, {"clause": "pull.answer", "why": "1"}]
    known = frozenset({"commit.told.kept"})
    assert convictions("invalid", findings[:1], known) == ()
    assert convictions("invalid", findings, known) == ("pull.answer: 1",)
    assert len(convictions("invalid", findings, frozenset())) == 2
    assert convictions("unknown", findings, frozenset()) == ()


def test_a_good_schedule_reports_no_fault() -> None:
    """Every message is delivered once and in order, and sends succeed again after a second."""
    report = account(GOOD)
    assert (report.acknowledged, report.lost, report.stuck, report.unexplained) == (3, (), (), ())
    assert (report.out_of_order, report.not_back, report.back_s) == ((), (), 1.0)


def test_lost_and_stuck_messages_are_distinguished() -> None:
    """A lost message is not in the broker; a stuck message is in the broker and was never delivered."""
    assert account(attrs.evolve(GOOD, stored={(0, 0): 0, (0, 1): 1})).lost == (2,)
    assert account(attrs.evolve(GOOD, stored={**GOOD.stored, (0, 3): 9})).stuck == ((0, 3),)


def test_only_a_fault_or_a_failed_send_explains_a_copy() -> None:
    """A fault during the send or a failed send explains a copy; a change of members does not."""
    deliveries = [*GOOD.deliveries, given(3, 6.0, number=1)]
    copied = attrs.evolve(GOOD, stored={**GOOD.stored, (0, 3): 1}, deliveries=deliveries)
    assert account(copied).unexplained == ("message 1 is stored 2 times, at [(0, 1), (0, 3)]",)
    reset = Happening("reset", S, 2 * S)
    assert account(attrs.evolve(copied, happenings=[reset])).unexplained == ()
    joined = Happening("join", S, 2 * S, "b")
    assert account(attrs.evolve(copied, happenings=[joined])).unexplained != ()
    late = attrs.evolve(copied, acknowledged=[sent(0, 1), sent(1, 2, failures=1), sent(2, 3)])
    assert account(late).unexplained == ()


def test_a_failure_or_a_change_of_members_explains_a_repeated_delivery() -> None:
    """A member that joined or left, or a failure, explains a repeated delivery."""
    again = attrs.evolve(GOOD, deliveries=[*GOOD.deliveries, given(2, 9.0, "b")])
    joined = Happening("join", 8 * S, 8 * S, "b")
    same = attrs.evolve(GOOD, deliveries=[*GOOD.deliveries, given(2, 9.0)], happenings=[joined])
    anew = attrs.evolve(same, shares=[*GOOD.shares, Share(8 * S, "a", 0, is_ours=True)])
    untold = attrs.evolve(same, shares=[])
    found = [len(account(each).unexplained) for each in (again, same, anew, untold)]
    assert found == [1, 1, 0, 0]
    assert account(attrs.evolve(again, happenings=[joined])).unexplained == ()


def test_only_first_deliveries_must_be_in_order() -> None:
    """First deliveries are ordered in each queue by offset and for each key by number; repeats do not count."""
    early = [given(0, 1.5), given(2, 2.5), given(1, 3.5)]
    assert len(account(attrs.evolve(GOOD, deliveries=early)).out_of_order) == 2
    assert account(attrs.evolve(GOOD, deliveries=early, is_orderly=False)).out_of_order == ()
    again = [*GOOD.deliveries, given(0, 9.0)]
    assert account(attrs.evolve(GOOD, deliveries=again)).out_of_order == ()


def test_each_sender_must_succeed_again_if_it_can() -> None:
    """A sender must succeed again, unless sends were possible for too short a time."""
    late = attrs.evolve(GOOD, possible=[Possible(0, 30 * S), Possible(40 * S, 49 * S), Possible(60 * S, 90 * S)])
    assert account(late).not_back == ("thread was back after 30.0 s",)
    two = [*GOOD.acknowledged, sent(3, 61.0), sent(4, 12.0, sender="loop"), sent(5, 62.0, sender="loop")]
    report = account(attrs.evolve(late, acknowledged=two, stored={(0, number): number for number in range(6)}))
    assert (report.not_back, report.back_s) == (("loop was back after 12.0 s",), 2.0)


def test_a_plan_depends_only_on_its_seed_and_keeps_its_limits() -> None:
    """A plan has one to three members, no overlapping events of a kind, and no event near its begin or end."""
    assert draw(7, 180.0) == draw(7, 180.0) != draw(8, 180.0)
    kinds: set[str] = set()
    for seed in range(50):
        plan, members = draw(seed, 180.0), 2
        assert all(event.at_s >= 2.0 and event.at_s + event.lasts_s <= 178.0 for event in plan.events)
        for event in plan.events:
            kinds.add(event.kind)
            members += {"join": 1, "leave": -1, "die": -1}.get(event.kind, 0)
            assert 1 <= members <= MEMBERS_MAX
        for servers in (("restart", "kill"), ("reset", "slow", "black hole", "half-open")):
            line = [event for event in plan.events if event.kind in servers]
            assert all(one.at_s + one.lasts_s <= after.at_s for one, after in itertools.pairwise(line))
    assert len(kinds) == 12
