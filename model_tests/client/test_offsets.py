"""Where a group begins that has stored nothing, with a broker that says so as 5.x does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from longpoll_broker.testing.scripted_server import Peer, ScriptedServer
from longpoll_client import StartAt, offsets
from longpoll_client.errors import ConnectionLostError, RefusedError
from longpoll_client.instance import ClientInstance
from longpoll_client.offsets import RemoteOffsets
from longpoll_protocol.bodies import BrokerData, MessageQueue, QueueData, TopicRouteData
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import OffsetResponseHeader, UpdateConsumerOffsetRequestHeader
from longpoll_runtime.real import RealRuntime

RUNTIME = RealRuntime()
FIRST = 2
QUEUE = MessageQueue(topic="T", broker_name="a", queue_id=0)
RETRY = MessageQueue(topic="%RETRY%G", broker_name="a", queue_id=0)


class OneQueue:
    """Name server and broker of one queue; answers 22 until an offset is stored, whatever the queue has."""

    def __init__(self) -> None:
        self.end = 5
        self.stored: int | None = None
        self.address = ""

    def answer(self, peer: Peer, command: Command) -> None:
        """Answer what a group's offsets are asked of."""
        code = RequestCode(command.code)
        if code is RequestCode.GET_ROUTEINFO_BY_TOPIC:
            queues = QueueData(broker_name="a", read_queue_nums=1, write_queue_nums=1, perm=6)
            brokers = BrokerData(broker_name="a", broker_addrs={0: self.address})
            peer.answer(command, body=TopicRouteData(broker_datas=[brokers], queue_datas=[queues]).encode())
        elif code is RequestCode.UPDATE_CONSUMER_OFFSET:
            self.stored = UpdateConsumerOffsetRequestHeader.decode(command.ext_fields).commit_offset
            peer.answer(command)
        else:
            offsets = {
                RequestCode.QUERY_CONSUMER_OFFSET: self.stored,
                RequestCode.GET_MIN_OFFSET: FIRST,
                RequestCode.GET_MAX_OFFSET: self.end,
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: 3,
            }
            offset = offsets[code]
            if offset is None:
                peer.answer(command, ResponseCode.QUERY_NOT_FOUND)
            else:
                peer.answer(command, fields=OffsetResponseHeader(offset=offset).encode())


@pytest.fixture
def broker() -> OneQueue:
    """The broker, which says what was stored with it."""
    return OneQueue()


@pytest.fixture
def members(broker: OneQueue) -> Iterator[tuple[RemoteOffsets, RemoteOffsets]]:
    """The offsets of one group as two of its members have them."""
    with ExitStack() as stack:
        server = stack.enter_context(ScriptedServer(broker.answer))
        broker.address = server.address
        instances = [stack.enter_context(ClientInstance(RUNTIME, server.address)) for _member in range(2)]
        for instance in instances:
            instance.route("T")
        first, second = (RemoteOffsets(instance, "G") for instance in instances)
        yield first, second


def test_what_comes_before_the_first_commit_is_not_left_out(
    broker: OneQueue, members: tuple[RemoteOffsets, RemoteOffsets]
) -> None:
    """A queue changes hands before its first member has consumed anything: the next one begins where that one did."""
    assert members[0].begin(QUEUE, StartAt.STORED, 0) == 5
    assert broker.stored == 5
    broker.end = 8
    assert members[1].begin(QUEUE, StartAt.STORED, 0) == 5


@pytest.mark.parametrize(("start_at", "begun"), [(StartAt.FIRST, FIRST), (StartAt.LAST, 5), (StartAt.TIMESTAMP, 3)])
def test_a_group_that_has_begun_goes_on_whatever_its_members_ask_for(
    broker: OneQueue, members: tuple[RemoteOffsets, RemoteOffsets], start_at: StartAt, begun: int
) -> None:
    """The first member begins as asked, and the next one where the group is; a broker of 4.x says 0 of a new group."""
    broker.stored = 0
    assert members[0].begin(QUEUE, start_at, 1_000) == begun
    assert broker.stored == begun
    broker.end = 9
    assert members[1].begin(QUEUE, start_at, 1_000) == begun
    members[1].store(QUEUE, 7)
    assert members[0].begin(QUEUE, start_at, 1_000) == 7


@pytest.mark.parametrize(("start_at", "begun"), [(StartAt.FIRST, FIRST), (StartAt.LAST, 5), (StartAt.STORED, 5)])
def test_a_queue_that_comes_back_goes_on_also_when_the_broker_has_forgotten_it(
    broker: OneQueue, members: tuple[RemoteOffsets, RemoteOffsets], start_at: StartAt, begun: int
) -> None:
    """A member that knows where it stood does not begin at the end because its broker lost the group's offsets."""
    assert members[0].begin(QUEUE, start_at, 0) == begun
    members[0].store(QUEUE, 6)
    broker.stored, broker.end = None, 8
    assert members[0].begin(QUEUE, start_at, 0) == 6
    broker.stored = 7
    assert members[0].begin(QUEUE, start_at, 0) == 7


def test_what_was_sent_back_comes_again_wherever_the_group_begins(
    members: tuple[RemoteOffsets, RemoteOffsets],
) -> None:
    """The retry topic is begun at 0 when nothing is stored, also by a group that begins at the end."""
    for member, start_at in zip(members, (StartAt.STORED, StartAt.LAST), strict=True):
        assert member.begin(RETRY, start_at, 0) == 0


def test_an_offset_that_is_known_already_is_not_told_again(
    broker: OneQueue, members: tuple[RemoteOffsets, RemoteOffsets]
) -> None:
    """Storing is asked for every 5 s: only what has moved reaches the broker."""
    members[0].begin(QUEUE, StartAt.STORED, 0)
    broker.stored = None
    members[0].store(QUEUE, 5)
    assert broker.stored is None
    members[0].store(QUEUE, 6)
    assert broker.stored == 6


def test_a_place_in_doubt_stays_so_until_its_broker_has_been_told(
    broker: OneQueue, members: tuple[RemoteOffsets, RemoteOffsets], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One failure does not settle it; after the broker has heard it, it is not told again."""
    members[0].begin(QUEUE, StartAt.STORED, 0)
    members[0].doubt(QUEUE)
    broker.stored = None
    with monkeypatch.context() as unheard:
        unheard.setattr(members[0], "_tell", _fail)
        with pytest.raises(ConnectionLostError):
            members[0].store(QUEUE, 5)
    members[0].store(QUEUE, 5)
    assert broker.stored == 5
    broker.stored = None
    members[0].store(QUEUE, 5)
    assert broker.stored is None


def _fail(_queue: MessageQueue, _offset: int) -> None:
    raise ConnectionLostError("planted")


def test_a_group_that_a_broker_has_never_heard_of_begins_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker of 5.x takes no offset of it (26): it is told later. Any other refusal is one."""
    kept = RemoteOffsets(ClientInstance(RealRuntime(), "127.0.0.1:1"), "G")
    queue = MessageQueue(topic="T", broker_name="b", queue_id=0)
    codes = [ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ResponseCode.SYSTEM_ERROR]

    def refuse(_queue: MessageQueue, _offset: int) -> None:
        raise RefusedError("storing", codes.pop(0), "no")

    monkeypatch.setattr(kept, "_client", lambda _queue: None)
    monkeypatch.setattr(kept, "stored", lambda _queue: None)
    monkeypatch.setattr(kept, "_tell", refuse)
    monkeypatch.setattr(offsets, "find_start", lambda *_asked: 7)
    assert (kept.begin(queue, StartAt.FIRST, 0), kept._doubted) == (7, {queue})
    with pytest.raises(RefusedError):
        kept.begin(MessageQueue(topic="T", broker_name="b", queue_id=1), StartAt.FIRST, 0)
