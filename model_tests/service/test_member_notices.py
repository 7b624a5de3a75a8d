"""Members are told of every change of their group, and a crowd that comes and goes does not make work without end."""

from __future__ import annotations

import random
from collections.abc import Hashable
from typing import Any

import msgspec
import pytest

from longpoll_broker.core.tables.subscription import Clients
from longpoll_broker.service.admin import member_notices
from longpoll_broker.service.admin.member_notices import MemberNotices
from longpoll_broker.service.io.channel import Channel, Parts
from longpoll_broker.testing.brokers import Connect, StartBroker, wait_until
from longpoll_protocol.codes import RequestCode
from longpoll_runtime.real import RealRuntime

NOTICES_MAX = 8
GROUPS = ("A", "B", "C")


class Told:
    """An outbox that counts what is written, and remembers when each connection was last told of each group."""

    def __init__(self) -> None:
        self.count = 0
        self.moment = 0
        self.last: dict[tuple[Hashable, str], int] = {}

    def write(self, channel: Channel, parts: Parts) -> None:
        """One notice."""
        self.count += 1
        content = b"".join(bytes(part) for part in parts)
        group = next(name for name in GROUPS if b'"%b"' % name.encode() in content)
        self.last[channel, group] = self.moment


def member() -> Channel:
    """A connection of which nobody asks anything."""
    return Channel.__new__(Channel)


def join(clients: Clients, channel: Channel, group: str) -> None:
    """Have a connection be a member of a group."""
    clients.heartbeat(
        channel, "c", group, message_model="CLUSTERING", consume_type="CONSUME_PASSIVELY", subscriptions=None
    )


def churn(seed: int) -> None:
    """Let members come and go through many passes; fails when a pass writes too much or a member is not told."""
    draw, clients, told = random.Random(seed), Clients(), Told()
    outbox: Any = told
    notices = MemberNotices(clients, RealRuntime().lock())
    changed_at: dict[str, int] = {}
    crowd = [member() for _ in range(40)]
    for _pass in range(60):
        before = told.count
        for _ in range(draw.randrange(12)):
            channel, group = draw.choice(crowd), draw.choice(GROUPS)
            live = clients.group(group)
            if live is not None and channel in live.members and draw.random() < 0.5:
                clients.unregister(channel, group)
            else:
                join(clients, channel, group)
            told.moment += 1
            changed_at[group] = told.moment
            notices.changed(group, outbox)
        notices.turn(outbox)
        assert told.count - before <= 2 * NOTICES_MAX, "a pass writes no more at once, and as many in rounds"
    while notices.has_more:
        notices.turn(outbox)
    for group, moment in changed_at.items():
        live = clients.group(group)
        for each in () if live is None else live.members:
            assert told.last[each, group] >= moment, f"seed {seed}: a member does not know of the last change"


@pytest.fixture
def few_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass may write few notices."""
    monkeypatch.setattr(member_notices, "NOTICES_MAX", NOTICES_MAX)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.usefixtures("few_notices")
def test_every_member_is_told_of_the_last_change(seed: int) -> None:
    """However its groups change during the rounds, and no pass writes more than its part."""
    churn(seed)


def changes(group: str, count: int) -> list[tuple[int, dict[str, str], bytes]]:
    """A member's joins and leaves, by turns."""
    body = {"clientID": "x", "consumerDataSet": [{"groupName": group, "subscriptionDataSet": []}]}
    joins: tuple[int, dict[str, str], bytes] = (RequestCode.HEART_BEAT.value, {}, msgspec.json.encode(body))
    leaves = (RequestCode.UNREGISTER_CLIENT.value, {"clientID": "x", "consumerGroup": group}, b"")
    return [joins, leaves] * count


def notices_of_a_burst(start_broker: StartBroker, connect: Connect) -> int:
    """How many notices a member gets of 100 joins and leaves that come in one piece."""
    broker = start_broker()
    members, restless = [connect(broker.address) for _ in range(NOTICES_MAX + 1)], connect(broker.address)
    for number, each in enumerate(members):
        body = {"clientID": f"c{number}", "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": []}]}
        assert each.call(RequestCode.HEART_BEAT, {}, msgspec.json.encode(body)).code == 0
        each.wait_push()
    watched = members[0]
    wait_until(lambda: not broker.administering.clients.notices.has_more)
    watched.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"})
    watched.pushes.clear()
    restless.send_bytes(b"".join(restless._request(*request)[1] for request in changes("G", 100)))
    assert restless.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"}).code == 0
    wait_until(lambda: not broker.administering.clients.notices.has_more)
    listed = watched.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"})
    assert len(msgspec.json.decode(listed.body)["consumerIdList"]) == len(members)
    return len(watched.pushes)


@pytest.mark.usefixtures("few_notices")
def test_a_burst_of_changes_is_told_together(start_broker: StartBroker, connect: Connect) -> None:
    """200 changes of a group that is too large to be told at once are a few notices a member, and at least one."""
    assert 1 <= notices_of_a_burst(start_broker, connect) <= 20


def test_a_small_group_is_told_of_each_change_as_java_does(start_broker: StartBroker, connect: Connect) -> None:
    """Which is also what the merging saves: each of the changes that a pass can tell is a notice."""
    assert notices_of_a_burst(start_broker, connect) > 20
