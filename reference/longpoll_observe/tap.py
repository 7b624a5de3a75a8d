"""Decodes the commands of one observed connection and writes their events to the history.

A request counts as received when the broker's kernel had its last byte, and an answer as sent when its first bytes had
arrived at the proxy. The times of receiving and sending are intervals of the proxy's clock; `uncertainty_ns` in
`meta.json` covers the delay between the proxy's and the broker's kernel.

The history has events for pulls, pops, sends, ends of transactions, and requests that change or query offsets. A
one-way request has an event only if it commits an offset or ends a transaction. A broker's requests to clients, such as
NOTIFY_CONSUMER_IDS_CHANGED (40), have no events. The tap reads the subscriptions in heartbeats. If a client gets a
message whose offset no acknowledgement reported, the message is reported once (`message_seen`), so that its tag is
known. A request that acknowledges a batch of popped messages is not decoded, and counts as lost.

The proxy relays unreadable bytes too, but the history then reports the connection as closed, and unseen events by
`lost`. If two open requests have the same opaque (request id), their answers are ambiguous, so neither request is
judged, and both count as lost.

`relay_loop` relays the bytes, and `events` converts the commands.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final, Literal

import msgspec
from attrs import define

from longpoll_observe.events import (
    END_TRANSACTION,
    PULLS,
    SENDS,
    SUCCESS,
    Delivered,
    Fields,
    Places,
    Sent,
    Subscriptions,
    delivered,
    ending_fields,
    pull_answer_fields,
    pull_fields,
    read_send,
    stored_at,
)
from longpoll_observe.pops import POPS, RETRIED, pop_answer_fields, pop_fields, popped
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.errors import ProtocolError, RemoteProtocolError
from longpoll_protocol.frames import (
    FRAME_SIZE_MAX,
    HEAD,
    HEAD_SIZE,
    Command,
    FrameReader,
    Serialisation,
    check_length,
    check_mark,
    decode_frame,
)
from longpoll_protocol.pop_headers import PopCode
from longpoll_recorder.recorder import (
    OFFSET_CODES,
    RESETTING_CODES,
    HistoryRecorder,
    offset_fields,
    resetting_fields,
    told_offset,
)
from longpoll_runtime.recoverable import FAULTS
from longpoll_spec.tables import with_table

log = logging.getLogger(__name__)

UNREADABLE: Final = (ProtocolError, *FAULTS)
HEART_BEAT: Final = RequestCode.HEART_BEAT.value
ANSWERED_MAX: Final = 256
"""The number of answered requests that are remembered per connection, to recognise a second answer."""
RECORDED: Final = PULLS | SENDS | POPS | frozenset(OFFSET_CODES)
"""The codes of requests that are recorded with their answers."""
OPEN_MAX: Final = 100_000
"""The maximum number of open requests on one connection. Further requests are not observed."""
Sender = Literal["client", "broker"]


def begins_frame(content: bytes) -> bool:
    """Whether a command may begin with these bytes, by its lengths and the first byte of a JSON header."""
    if len(content) <= HEAD_SIZE:
        return False
    length, mark = HEAD.unpack_from(content)
    try:
        check_length(length, FRAME_SIZE_MAX)
        serialisation, _size = check_mark(mark, length)
    except RemoteProtocolError:
        return False
    return serialisation is not Serialisation.JSON or content[HEAD_SIZE : HEAD_SIZE + 1] == b"{"


class CommandStream:
    """Splits one direction of a connection into commands, and bounds when the first byte of each command arrived.

    Invariant: for an incomplete frame, `_begun_ns` is a time before which the frame's first byte had not arrived.
    """

    __slots__ = ("_begun_ns", "_frames")

    def __init__(self) -> None:
        self._frames = FrameReader()
        self._begun_ns = 0

    def feed(self, content: bytes, after_ns: int) -> Iterator[tuple[Command, int]]:
        """Iterate over the commands that these bytes complete; raises RemoteProtocolError."""
        begun_ns = after_ns if self._frames.is_between_frames else self._begun_ns
        self._frames.feed(content)
        while (frame := self._frames.next_frame()) is not None:
            yield decode_frame(frame), begun_ns
            begun_ns = after_ns
        self._begun_ns = begun_ns


@with_table
class Open(msgspec.Struct, frozen=True):
    """A request that waits for its answer.

    This class is a Struct, because creating one takes a tenth of the time that attrs needs.
    """

    request: str
    place: Fields
    """The event fields that contain the request's topic and queue."""
    code: int
    sent: Sent | None = None
    """The content of a send request; None for other requests."""
    group: str = ""
    """The consumer group of a pop; empty for other requests."""
    ambiguous: bool = False
    """Whether another open request had the same opaque."""


@define(slots=True)
class TapTotals:
    """The counts of the taps of one broker."""

    requests: int = 0
    answers: int = 0
    unreadable: int = 0


class ConnectionTap:
    """The tap of one client connection to a broker.

    Invariants: `_open` are the recorded, unanswered requests by opaque (request id); `_answered` are the last answered
    requests; `_others` are the opaques of unrecorded, unanswered requests.
    """

    def __init__(
        self,
        recorder: HistoryRecorder,
        subscriptions: Subscriptions,
        connection: str,
        totals: TapTotals,
        places: Places | None = None,
    ) -> None:
        """Create a tap; `subscriptions` and `places` are shared by the connections of one broker."""
        self._recorder = recorder
        self._subscriptions = subscriptions
        self._places = Places() if places is None else places
        self._connection = connection
        self._totals = totals
        self._requests = CommandStream()
        self._answers = CommandStream()
        self._open: dict[int, Open] = {}
        self._answered: OrderedDict[int, Open] = OrderedDict()
        self._others: set[int] = set()
        self._number = 0
        self._unseen = 0
        """The number of requests that were not remembered because too many were open. Their answers are not recorded.
        """
        self._ended = False
        self._unread_ns: int | None = None
        """The time since which the connection cannot be read; None if it can."""
        self._partly_ns: int | None = None
        """The time since which requests may be missing whose answers may still arrive; None if no request is missing.
        """

    def opened(self, after_ns: int, before_ns: int) -> None:
        """Record that the client connected."""
        self._recorder.put("connection_opened", after_ns, before_ns=before_ns, connection=self._connection)

    def forwarded(self, content: bytes, after_ns: int, before_ns: int) -> None:
        """Process the client's next bytes, which the broker has received."""
        if self._ended:
            return
        try:
            for command, _begun_ns in self._requests.feed(content, after_ns):
                if not command.is_response:
                    self._request(command, after_ns, before_ns)
        except RemoteProtocolError as error:
            self._give_up("client", error, after_ns, before_ns)

    def answered(self, content: bytes, after_ns: int, before_ns: int) -> None:
        """Process the broker's next bytes."""
        if self._ended:
            return
        try:
            for command, begun_ns in self._answers.feed(content, after_ns):
                if command.is_response:
                    self._answer(command, begun_ns, before_ns)
        except RemoteProtocolError as error:
            self._give_up("broker", error, after_ns, before_ns)

    def joined(self, now_ns: int) -> None:
        """Note that the connection is older than the capture, so that answers to unknown requests may arrive."""
        self._partly_ns = now_ns

    def missed(self, sender: Sender, after_ns: int, before_ns: int) -> None:
        """Note that bytes of one sender are missing between the two times, and that the next bytes begin a command."""
        if self._ended:
            return
        self._recorder.lose(1, after_ns, before_ns)
        if sender == "client":
            self._requests = CommandStream()
            self._partly_ns = after_ns if self._partly_ns is None else self._partly_ns
        else:
            self._answers = CommandStream()

    def cut(self, now_ns: int) -> None:
        """Note that the observation ends before the connection."""
        if self._unread_ns is not None:
            self._recorder.lose(1, self._unread_ns, now_ns)
        self._ended = True

    def blocked(self, direction: str, after_ns: int, before_ns: int) -> None:
        """Note that bytes wait for their receiver."""
        self._tell_waiting("blocked", direction, after_ns, before_ns)

    def unblocked(self, direction: str, after_ns: int, before_ns: int) -> None:
        """Note that the receiver has accepted the waiting bytes."""
        self._tell_waiting("unblocked", direction, after_ns, before_ns)

    def closed(self, after_ns: int, before_ns: int) -> None:
        """Record that the connection ended."""
        if self._unread_ns is not None:
            # All commands of this connection from this time on are unknown.
            self._recorder.lose(1, self._unread_ns, before_ns)
            self._unread_ns = None
        if self._ended:
            return
        self._ended = True
        self._recorder.put("connection_closed", after_ns, before_ns=before_ns, connection=self._connection)

    def _tell_waiting(self, event: str, direction: str, after_ns: int, before_ns: int) -> None:
        if not self._ended:
            self._recorder.put(event, after_ns, before_ns=before_ns, connection=self._connection, direction=direction)

    def _request(self, command: Command, after_ns: int, before_ns: int) -> None:
        code = command.code
        if code == HEART_BEAT:
            self._expect_other(command)
            self._learn(command, after_ns, before_ns)
        elif code in RESETTING_CODES:
            self._expect_other(command)
            self._unanswered(command, resetting_fields(command), after_ns, before_ns)
        elif code == END_TRANSACTION:
            self._expect_other(command)
            self._tell_unanswered(ending_fields, command, after_ns, before_ns)
        elif code in OFFSET_CODES and command.is_one_way:
            self._tell_unanswered(offset_fields, command, after_ns, before_ns)
        elif code in RECORDED and not command.is_one_way:
            self._number += 1
            self._totals.requests += 1
            opaque = command.opaque
            try:
                sent = read_send(command) if code in SENDS else None
                fields = sent.fields() if sent is not None else self._fields(command, after_ns)
            except UNREADABLE as error:
                # The broker may answer a request without an identifier with an error. The request cannot be judged, but
                # its answer must be recognised.
                self._expect_other(command)
                self._miss(f"a request of code {code}", error, after_ns, before_ns)
                return
            place = {"topic": fields["topic"], "queue": fields["queue"]}
            ambiguous = opaque in self._open or opaque in self._others
            group = fields["group"] if code in POPS else ""
            asked = Open(f"{self._connection}-{self._number}", place, code, sent, group, ambiguous)
            if ambiguous or len(self._open) >= OPEN_MAX:
                # It is unknown which answer belongs to which request, so neither request is judged, and each counts as
                # lost when an answer arrives.
                self._recorder.lose(1, after_ns, before_ns)
                if ambiguous:
                    self._open[opaque] = asked
                else:
                    self._unseen += 1
                return
            self._open[opaque] = asked
            self._answered.pop(opaque, None)
            self._tell("request_received", asked, after_ns, before_ns, code=code, **fields)
        else:
            self._expect_other(command)

    def _expect_other(self, command: Command) -> None:
        """Remember a request without an event, so that its answer is not taken for the answer to another request."""
        if command.is_one_way:
            return
        opaque = command.opaque
        self._answered.pop(opaque, None)
        earlier = self._open.get(opaque)
        if earlier is not None:
            self._open[opaque] = msgspec.structs.replace(earlier, ambiguous=True)
        elif len(self._others) < OPEN_MAX:
            self._others.add(opaque)

    def _fields(self, command: Command, after_ns: int) -> Fields:
        """Returns the fields of a pull, a pop, or an offset request; raises HeaderError."""
        if command.code in POPS:
            return pop_fields(command, self._recorder.unix_ms(after_ns))
        return offset_fields(command) if command.code in OFFSET_CODES else pull_fields(command, self._subscriptions)

    def _tell_unanswered(
        self, read: Callable[[Command], Fields], command: Command, after_ns: int, before_ns: int
    ) -> None:
        try:
            fields = read(command)
        except UNREADABLE as error:
            self._miss(f"a request of code {command.code}", error, after_ns, before_ns)
            return
        self._unanswered(command, fields, after_ns, before_ns)

    def _unanswered(self, command: Command, fields: Fields, after_ns: int, before_ns: int) -> None:
        """Record a request without an identifier, so that its answer is ignored."""
        place = {"connection": self._connection, "code": command.code}
        self._recorder.put("request_received", after_ns, before_ns=before_ns, **place, **fields)

    def _learn(self, heartbeat: Command, after_ns: int, before_ns: int) -> None:
        try:
            self._subscriptions.learn(heartbeat)
        except UNREADABLE as error:
            self._miss("a heartbeat", error, after_ns, before_ns)

    def _answer(self, command: Command, after_ns: int, before_ns: int) -> None:
        asked = self._open.pop(command.opaque, None)
        if asked is None:
            if command.opaque in self._others:
                self._others.discard(command.opaque)
                return
            asked = self._answered.get(command.opaque)
            if asked is None:
                if self._unseen:
                    self._unseen -= 1
                    self._recorder.lose(1, after_ns, before_ns)
                elif self._partly_ns is not None:
                    # It is unknown to which request this answer belongs, and when the broker received the request.
                    self._recorder.lose(1, self._partly_ns, before_ns)
                return
        self._answered[command.opaque] = asked
        if len(self._answered) > ANSWERED_MAX:
            self._answered.popitem(last=False)
        self._totals.answers += 1
        if asked.ambiguous:
            self._recorder.lose(1, after_ns, before_ns)
            return
        try:
            if asked.sent is None:
                self._pull_answer(command, asked, after_ns, before_ns)
            else:
                self._send_answer(command, asked, asked.sent, after_ns, before_ns)
        except UNREADABLE as error:
            self._miss(f"an answer of code {command.code}", error, after_ns, before_ns)

    def _pull_answer(self, command: Command, asked: Open, after_ns: int, before_ns: int) -> None:
        if asked.code in OFFSET_CODES:
            fields = told_offset(asked.code, command)
            self._tell("answer_sent", asked, after_ns, before_ns, code=command.code, **asked.place, **fields)
            return
        if asked.code in POPS:
            self._pop_answer(command, asked, after_ns, before_ns)
            return
        found = delivered(command.body, **asked.place) if command.code == SUCCESS else Delivered()
        lists = {"offsets": found.offsets, "ids": found.ids, "bodies": found.bodies}
        fields = pull_answer_fields(command) | lists
        self._tell("answer_sent", asked, after_ns, before_ns, code=command.code, **asked.place, **fields)
        for offset, tag in zip(found.offsets, found.tags, strict=True):
            if self._places.add(offset=offset, **asked.place):
                place = {**asked.place, "queue_offset": offset, "tag": tag}
                self._recorder.put("message_seen", after_ns, before_ns=before_ns, **place)

    def _pop_answer(self, command: Command, asked: Open, after_ns: int, before_ns: int) -> None:
        found = popped(command, asked.group) if asked.code == PopCode.POP_MESSAGE else []
        fields = asked.place | pop_answer_fields(asked.code, command)
        self._tell("answer_sent", asked, after_ns, before_ns, code=command.code, **fields)
        for message in found:
            self._tell("message_popped", asked, after_ns, before_ns, group=asked.group, **message.fields())
            if message.cause != RETRIED and self._places.add(message.topic, message.queue, message.queue_offset):
                names = ("topic", "queue", "queue_offset", "tag")
                place = {name: getattr(message, name) for name in names}
                self._recorder.put("message_seen", after_ns, before_ns=before_ns, **place)

    def _send_answer(self, command: Command, asked: Open, sent: Sent, after_ns: int, before_ns: int) -> None:
        stored = stored_at(command)
        if stored is None or not sent.tags:
            self._tell("answer_sent", asked, after_ns, before_ns, code=command.code, **asked.place)
            return
        queue, first = stored
        for number, tag in enumerate(sent.tags):
            place = {"topic": sent.topic, "queue": queue, "queue_offset": first + number, "tag": tag}
            own = {"ids": sent.ids[number : number + 1], "bodies": sent.bodies[number : number + 1]}
            self._places.add(sent.topic, queue, first + number)
            self._tell("message_acknowledged", asked, after_ns, before_ns, **place, **own)

    def _tell(self, event: str, asked: Open, after_ns: int, before_ns: int, **fields: object) -> None:
        self._recorder.put(
            event, after_ns, before_ns=before_ns, request=asked.request, connection=self._connection, **fields
        )

    def _miss(self, what: str, error: BaseException, after_ns: int, before_ns: int) -> None:
        self._totals.unreadable += 1
        self._recorder.lose(1, after_ns, before_ns)
        log.warning("connection %s: %s was relayed and could not be read: %s", self._connection, what, error)

    def _give_up(self, who: str, error: RemoteProtocolError, after_ns: int, before_ns: int) -> None:
        """End the connection in the history, because the position of the next command is unknown."""
        self._miss(f"what the {who} sent, and all after it,", error, after_ns, before_ns)
        self.closed(after_ns, before_ns)
        self._unread_ns = after_ns
