"""Short scenarios of the client against our own broker; `model_tests/peers` plays them with the Java brokers too."""

from __future__ import annotations

import pytest
from model_tests.support.broker import client_scenarios as stories
from model_tests.support.broker.client_scenarios import Log, explain
from model_tests.support.client import Clients


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_nothing_is_lost_while_members_come_and_go(clients: Clients, count: int) -> None:
    """Every message is delivered. A message is repeated only after its queue got another owner."""
    report = stories.rebalance(clients.name_server, count, clients.consumer)
    print(f"rebalance: {report}")  # noqa: T201 - the figure that the long test is run for
    assert report.lost == ()
    assert report.distinct == report.sent == count
    assert report.unexplained == ()
    assert report.handovers >= 8 + 4 + 2 + 2


def test_an_orderly_group_keeps_order_after_retries(clients: Clients) -> None:
    """Messages of a queue come one by one, and a deferred message comes again before its successor."""
    report = stories.orderly(clients.name_server, 800, clients.consumer)
    assert (report.count, report.out_of_order, report.at_once) == (800, 0, 0)
    assert report.put_off == 16


@pytest.mark.parametrize("name", stories.FLOW_LIMITS)
def test_flow_control_pauses_and_resumes_pulling(name_server: str, name: str) -> None:
    """If waiting messages are too many, too large or too widely spread, pulling stops until they are consumed."""
    report = stories.flow_control(name_server, 80, 1_000, **stories.FLOW_LIMITS[name])
    assert report.stopped_by == name
    assert 0 < report.waiting < 80
    assert report.consumed == 80
    assert report.stopped_after is None


@pytest.mark.parametrize("raises", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_failing_message_ends_among_the_dead_letters(clients: Clients, raises: bool) -> None:
    """The message comes twice more from the retry topic with its own topic's name, and then becomes a dead letter."""
    report = stories.retry(clients.name_server, raises=raises, push=clients.consumer)
    assert report.reconsume_times == (0, 1, 2)
    assert len(report.topics) == 1
    assert not next(iter(report.topics)).startswith("%")
    assert report.dead == (b"poison",)
    assert report.tags == "red"


@pytest.mark.parametrize(
    ("member", "handover", "unexplained"),
    [("a", ("a", 1), 1), ("a", ("a", 0), 0), ("c", ("c", 0), 0), ("a", ("c", 0), 1)],
)
def test_only_a_new_assignment_of_a_queue_explains_a_second_delivery(
    member: str, handover: tuple[str, int], unexplained: int
) -> None:
    log = Log()
    log.handovers.append(stories.Handover(1, "a", ("T", 0), is_ours=True))
    log.arrivals.append(stories.Arrival(2, "a", ("b", 0), 5, "id"))
    log.handovers.append(stories.Handover(3, handover[0], ("T", handover[1]), is_ours=True))
    log.arrivals.append(stories.Arrival(4, member, ("b", 0), 5, "id"))
    report = explain(log, ["id", "gone"])
    assert (report.duplicates, len(report.unexplained), report.lost) == (1, unexplained, ("gone",))
