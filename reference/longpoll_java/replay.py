"""Plays a schedule on a running Java broker, and reports each step.

`schedule` and `violations` make the moves, and `breakpoints` controls the threads and receives replies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Final

from attrs import define, field, frozen

from longpoll_java.breakpoints import Arrival, Breakpoints, Peer
from longpoll_java.broker import JavaBroker
from longpoll_java.schedule import DISPATCHER, FOUND, OPERATOR, SCANNER, Move, Schedule
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames import Command
from longpoll_protocol.pop_headers import PopCode

WITHIN_S: Final = 20.0
"""The seconds to wait for a thread, which are four scan periods."""
PASSED: Final = frozenset({"held", "served", "rounded", "closed", "returned", "recheck"})
"""The breakpoints that report a thread without stopping it."""
WALK: Final = frozenset({"notify", "taken", "each", "submit", "keep", "done"})
"""The breakpoints of a traversal."""
WALKERS: Final = frozenset({DISPATCHER, SCANNER, OPERATOR})
"""The threads whose traversals stop at breakpoints."""
EARLY_MS: Final = 100
"""A pop counts as late from this many milliseconds before its deadline on, because `PopRequest.isTimeout` is true 50 ms
before the deadline."""
INVISIBLE_MS: Final = 60_000
JUST_S: Final = 0.5
"""A count of ticks may start within this many seconds after the end of a scan."""
POP_SCANNER: Final = "PopLongPollingService"
PRIME_HOLD_MS: Final = 1
LMQ: Final = "%LMQ%"
SUSPEND, SUBSCRIPTION, COMMIT = 2, 4, 1
"""The bits of a pull's sysFlag (`PullSysFlag.java`)."""
_NUMBERS: Final = count(1)


class NotFollowedError(Exception):
    """The broker did not do in time what the next step of the run needs.

    The message names the step and the awaited event.
    """


class OtherwiseError(Exception):
    """The broker took a step that the specification does not allow. The message describes it."""


@frozen
class Seen:
    """The observation of one step."""

    label: str
    said: tuple[str, ...]
    at_ms: float
    """The milliseconds since the start of the run's first step."""


@frozen
class Played:
    """The steps of a schedule that the broker followed, and the result."""

    steps: tuple[Seen, ...]
    of: int
    shown: tuple[str, ...]
    """The evidence of the violation."""
    broken: bool
    """Whether the broker violated the property."""
    cannot: str = ""
    """The reason why the broker did not continue; empty if it continued to the end."""
    otherwise: str = ""
    """A step of the broker that the specification does not allow; empty without such a step."""

    @property
    def is_whole(self) -> bool:
        """Whether every step was taken."""
        return len(self.steps) == self.of


@define(eq=False)
class _Slot:
    group: str
    peer: Peer | None = None
    opaque: int = 0
    sent_s: float = 0.0


def _takes_up(arrival: Arrival) -> bool:
    """Whether the thread checks a pull, passes it to the executor, or reads for it."""
    return arrival.gate in {"each", "submit", "wake"} or (arrival.gate == "read" and arrival.suspends is False)


def play(broker: JavaBroker, schedule: Schedule) -> Played:
    """Play a schedule on a new topic. Raises OSError if the broker's connection breaks."""
    return _Player(broker, schedule).play()


@define(eq=False)
class _Player:
    """One replay. Invariant: `stage` stops threads only in scan rounds and at this replay's topic and pulls."""

    broker: JavaBroker
    schedule: Schedule
    stage: Breakpoints = field(init=False)
    topic: str = field(init=False)
    slots: dict[int, _Slot] = field(factory=dict)
    pulls: dict[int, int] = field(factory=dict)
    """Maps the opaque of each pull to its consumer."""
    queue_ids: dict[int, int] = field(factory=dict)
    """Maps the specification's number of a queue to the broker's number."""
    admins: dict[tuple[str, int], Peer] = field(factory=dict)
    """Maps each address to the connection for requests with immediate answers."""
    returning: tuple[Peer, int] | None = None
    """The connection and opaque of the request about the master's return."""
    stopped: Callable[[Arrival], bool] = field(init=False)
    acted_at: int = 0
    """The number of observations at the last move."""
    ended_at: int = 0
    """The number of observations at the end of the specification's run."""
    round_at: int = 0
    """The number of observations at the start of the last round."""
    anchor_s: float = 0.0
    ticks: int = 0
    begun_ms: int = 0
    """The time when the first pop was sent, in milliseconds of the system's clock."""
    shown_at_s: dict[int, float] = field(factory=dict)
    """Maps each queue to the time when its last message became visible."""

    def __attrs_post_init__(self) -> None:
        number = next(_NUMBERS)
        self.stage = self.broker.stage
        self.topic = f"{LMQ if self.schedule.lmq else ''}replay-{self.broker.process_id}-{number}"
        self.queue_ids = {number: number for number in range(self.schedule.queues)}

    def play(self) -> Played:
        steps: list[Seen] = []
        shown: list[str] = []
        begun_s = time.monotonic()
        doing = "before the first step"
        try:
            self._do_all(self.schedule.before)
            self._stop_all()
            begun_s = time.monotonic()
            for step in self.schedule.steps:
                doing = f"step {len(steps) + 1} ({step.label})"
                said = tuple(self._do_all(step.moves))
                self._compare(step.open)
                steps.append(Seen(step.label, said, (time.monotonic() - begun_s) * 1e3))
            self.ended_at = len(self.stage.seen)
            doing = "after the last step"
            shown += self._do_all(self.schedule.after)
        except NotFollowedError as error:
            return self._played(steps, shown, cannot=f"{doing}: {error}")
        except OtherwiseError as error:
            return self._played(steps, shown, otherwise=f"{doing}: {error}")
        finally:
            self._leave()
        return self._played(steps, shown, broken=bool(self.schedule.after))

    def _played(
        self, steps: list[Seen], shown: list[str], *, cannot: str = "", otherwise: str = "", broken: bool = False
    ) -> Played:
        return Played(tuple(steps), len(self.schedule.steps), tuple(shown), broken, cannot, otherwise)

    def _leave(self) -> None:
        self.stage.stops = lambda _arrival: False
        self.stage.let_go(lambda _arrival: True)
        for peer in [*self.admins.values(), *(slot.peer for slot in self.slots.values())]:
            if peer is not None:
                self.stage.close(peer)
        self.stage.seen.clear()

    # -- which threads stop at a breakpoint --------------------------------------------------------------------------

    def _stop_all(self) -> None:
        """Stop threads of this run from now on, after the current scan round, whose steps do not belong to the run."""
        self.stage.stops = lambda arrival: arrival.gate == "round"
        self.stage.until(lambda: not self._is_in_round(), WITHIN_S)
        self.stage.stops = self._is_ours

    def _is_in_round(self) -> bool:
        """Whether the scanner is in a round. A round that an exception ended counts until the next round begins."""
        if any(each.gate == "round" for each in self.stage.standing.values()):
            return False
        last_s = self.stage.last_s
        return last_s.get("round", 0.0) > last_s.get("rounded", 0.0)

    def _is_ours(self, arrival: Arrival) -> bool:
        gate = arrival.gate
        if gate in PASSED or (gate == "notify" and self._role(arrival) == SCANNER):
            return False
        if gate in WALK and self._role(arrival) not in WALKERS:
            # The thread of a pull rechecks after its insert, because a rule adds this recheck.
            return False
        if gate == "round":
            return True
        if gate in {"sweep", "remove"}:
            visits = [each.topic for each in self.stage.seen if each.gate == "queue"]
            return bool(visits) and visits[-1] == self.topic
        if arrival.topic and arrival.topic != self.topic:
            return False
        return arrival.request < 0 or arrival.request in self.pulls

    def _role(self, arrival: Arrival) -> str:
        if "ReputMessageService" in arrival.thread:
            return DISPATCHER
        if "PullRequestHoldService" in arrival.thread or arrival.thread == POP_SCANNER:
            return SCANNER
        if "AdminBroker" in arrival.thread:
            return OPERATOR
        slot = self.pulls.get(arrival.request, -1)
        return f"{'run' if arrival.suspends is False else 'pull'} {slot}"

    def _fits(self, arrival: Arrival, move: Move) -> bool:
        if arrival.gate not in move.gates or self._role(arrival) != move.thread:
            return False
        if move.slot >= 0 and self.pulls.get(arrival.request) != move.slot:
            return False
        return move.queue < 0 or arrival.queue == self.queue_ids.get(move.queue, move.queue)

    def _standing(self, move: Move) -> Arrival | None:
        return next((each for each in self.stage.standing.values() if self._fits(each, move)), None)

    # -- playing the moves of a step ---------------------------------------------------------------------------------

    def _do_all(self, moves: Sequence[Move]) -> Iterator[str]:
        said = [words for move in moves if (words := _DO[move.kind](self, move))]
        return iter(said)

    def until(self, move: Move) -> str:
        """Wait until a thread reaches a breakpoint of the move, whether the breakpoint stops the thread or not."""

        def there() -> Arrival | None:
            passed = (each for each in self.stage.seen[self.acted_at :] if each.gate in PASSED)
            return self._standing(move) or next((each for each in passed if self._fits(each, move)), None)

        if not self.stage.until(lambda: there() is not None, WITHIN_S):
            self._refuse_unfit()
            where = ", ".join(f"{thread} at {arrival.gate}" for thread, arrival in self.stage.standing.items())
            raise NotFollowedError(
                f"{move.thread} did not reach {' or '.join(move.gates)} within {WITHIN_S:g} s; "
                f"waiting threads: {where or 'none'}"
            )
        found = there()
        assert found is not None
        return f"{found.thread} {'passes' if found.gate in PASSED else 'pauses at'} {found.gate}"

    def _refuse_unfit(self) -> None:
        if not self.broker.is_running:
            raise NotFollowedError("the broker's process has ended")
        if self.broker.refused:
            raise NotFollowedError(
                f"these jars differ from the published ones: Byteman refuses the rule {self.broker.refused}"
            )

    def go(self, move: Move) -> str:
        """Release a thread from its breakpoint. A thread that is at no breakpoint is not changed."""
        self._answer_at(move, "G")
        return ""

    def throw(self, move: Move) -> str:
        found = self._answer_at(move, "T")
        if found is None:
            raise NotFollowedError(f"{move.thread} is not at {' or '.join(move.gates)}, where it must throw")
        return f"{found.thread} throws at {found.gate}"

    def _answer_at(self, move: Move, word: str) -> Arrival | None:
        found = self._standing(move)
        if found is None:
            return None
        self.acted_at = len(self.stage.seen)
        if found.gate == "round":
            self.round_at, self.anchor_s, self.ticks = self.acted_at, time.monotonic(), 0
        if found.gate == "dispatch":
            self.shown_at_s[found.queue] = time.monotonic()
        self.stage.answer(found.thread, word)
        return found

    def free(self, move: Move) -> str:
        """Stop threads only at the named breakpoints from now on."""
        kept = frozenset(move.gates)
        self.stage.stops = lambda arrival: arrival.gate in kept and arrival.topic in {"", self.topic}
        self.acted_at = len(self.stage.seen)
        self.stage.let_go(lambda arrival: arrival.gate not in kept)
        return ""

    def create(self, move: Move) -> str:
        number = str(move.number)
        fields = {
            "topic": self._parent, "defaultTopic": "TBW102", "readQueueNums": number, "writeQueueNums": number,
            "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        for address in dict.fromkeys((self.broker.sent_to, self.broker.address)):
            self._asked(RequestCode.UPDATE_AND_CREATE_TOPIC, fields, to=address)
        return ""

    @property
    def _noun(self) -> str:
        return "pop" if self.schedule.pops else "pull"

    @property
    def _parent(self) -> str:
        """The topic to which messages are sent: a light message queue is filled through a topic with another name."""
        return self.topic.removeprefix(LMQ)

    def send(self, move: Move) -> str:
        now = str(int(time.time() * 1e3))
        fields = {
            "producerGroup": "replay", "topic": self._parent, "defaultTopic": "TBW102", "defaultTopicQueueNums": "1",
            "queueId": str(self.queue_ids[move.queue]), "sysFlag": "0", "bornTimestamp": now, "flag": "0",
            "properties": f"INNER_MULTI_DISPATCH\x01{self.topic}\x02" if self.schedule.lmq else "",
            "reconsumeTimes": "0", "unitMode": "false", "batch": "false",
        }  # fmt: skip
        self.acted_at = len(self.stage.seen)
        reply = self._asked(RequestCode.SEND_MESSAGE, fields, b"message", to=self.broker.sent_to)
        return f"acknowledged at offset {(reply.ext_fields or {}).get('queueOffset', '?')}"

    def pull(self, move: Move) -> str:
        slot = self.slots.setdefault(move.slot, _Slot(f"{self._parent}-{move.slot}"))
        if slot.peer is None or not slot.peer.is_open:
            slot.peer = self.stage.connect(self.broker.address)
        slot.opaque = next(_NUMBERS)
        is_prime = move.word == "prime"
        if not is_prime:
            self.pulls[slot.opaque] = move.slot
        fields = {
            "consumerGroup": slot.group, "topic": self.topic, "queueId": str(self.queue_ids[move.queue]),
            "queueOffset": str(move.number), "maxMsgNums": "32",
            "sysFlag": str(SUSPEND | SUBSCRIPTION | (COMMIT if move.commits >= 0 else 0)),
            "commitOffset": str(max(move.commits, 0)),
            "suspendTimeoutMillis": str(PRIME_HOLD_MS if is_prime else self.schedule.hold_ms),
            "subscription": "*", "subVersion": "0", "expressionType": "TAG",
        }  # fmt: skip
        self.acted_at = len(self.stage.seen)
        slot.sent_s = time.monotonic()
        self.stage.send(slot.peer, Command(RequestCode.PULL_MESSAGE, slot.opaque, 0, fields))
        return ""

    def pop(self, move: Move) -> str:
        """Send a pop. All pops belong to one group, and expire in the order of the moves' `number`, in milliseconds."""
        slot = self.slots.setdefault(move.slot, _Slot(self._parent))
        if slot.peer is None or not slot.peer.is_open:
            slot.peer = self.stage.connect(self.broker.address)
        slot.opaque = next(_NUMBERS)
        self.pulls[slot.opaque] = move.slot
        self.begun_ms = self.begun_ms or int(time.time() * 1e3)
        fields = {
            "consumerGroup": slot.group, "topic": self.topic, "queueId": str(self.queue_ids.get(move.queue, -1)),
            "maxMsgNums": "1", "invisibleTime": str(INVISIBLE_MS), "pollTime": str(self.schedule.hold_ms),
            "bornTime": str(self.begun_ms + move.number), "initMode": "0", "order": "false",
        }  # fmt: skip
        self.acted_at = len(self.stage.seen)
        slot.sent_s = time.monotonic() - (time.time() - self.begun_ms / 1e3)
        self.stage.send(slot.peer, Command(PopCode.POP_MESSAGE, slot.opaque, 0, fields))
        return ""

    def turn(self, move: Move) -> str:
        """Release the scanner of pops until it is at the breakpoint with this pop."""

        def there() -> bool:
            if self._standing(move) is not None:
                return True
            self.stage.let_go(lambda arrival: self._role(arrival) == SCANNER)
            return False

        if not self.stage.until(there, WITHIN_S):
            self._refuse_unfit()
            raise NotFollowedError(f"the scanner did not take pop {move.slot} out of its set within {WITHIN_S:g} s")
        found = self._standing(move)
        assert found is not None
        return f"{found.thread} pauses at {found.gate}"

    def close(self, move: Move) -> str:
        peer = self.slots[move.slot].peer
        assert peer is not None
        self.acted_at = len(self.stage.seen)
        self.stage.close(peer)
        if not self.stage.until(
            lambda: any(each.gate == "closed" for each in self.stage.seen[self.acted_at :]), WITHIN_S
        ):
            raise NotFollowedError("the broker does not notice that the channel is closed")
        return "the broker sees that the channel is closed"

    def commit(self, move: Move) -> str:
        fields = self._group_fields(move) | {"commitOffset": str(move.number)}
        self._asked(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        return f"committed {move.number}"

    def offset(self, move: Move) -> str:
        reply = self._asked(RequestCode.QUERY_CONSUMER_OFFSET, self._group_fields(move))
        said = (reply.ext_fields or {}).get("offset", "none")
        if said != str(move.number):
            raise OtherwiseError(f"the group's offset is {said}, but the specification expects {move.number}")
        return f"the group's offset is {said}"

    def _group_fields(self, move: Move) -> dict[str, str]:
        group = self.slots[move.slot].group
        return {"consumerGroup": group, "topic": self.topic, "queueId": str(self.queue_ids[max(move.queue, 0)])}

    def _asked(
        self, code: RequestCode, fields: dict[str, str], body: bytes = b"", to: tuple[str, int] | None = None
    ) -> Command:
        """Send a request that is answered at once, to this broker or to the broker at `to`.

        Returns the reply. Raises NotFollowedError if no reply comes, or if it reports an error.
        """
        admin, opaque = self._ask(Command(code, next(_NUMBERS), 0, fields, body), to or self.broker.address)
        self.stage.until(lambda: opaque in admin.replies or not admin.is_open, WITHIN_S)
        if opaque not in admin.replies:
            self._refuse_unfit()
            raise NotFollowedError(f"the broker does not answer {code.name}")
        reply, _ = admin.replies.pop(opaque)
        if reply.code != ResponseCode.SUCCESS:
            raise NotFollowedError(f"the broker answers {code.name} with {reply.code}: {reply.remark}")
        return reply

    def _ask(self, command: Command, to: tuple[str, int]) -> tuple[Peer, int]:
        if to not in self.admins:
            self.admins[to] = self.stage.connect(to)
        self.stage.send(self.admins[to], command)
        return self.admins[to], command.opaque

    def acts(self, _move: Move) -> str:
        """Tell the slave that it has the least id of the living brokers, so that it acts for its master."""
        self._asked(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, self._least(1, self.broker.address))
        return "the slave acts as master"

    def returns(self, _move: Move) -> str:
        """Tell the slave that its master is back, without waiting for the reply.

        A breakpoint holds the thread that would reply.
        """
        assert self.broker.master is not None
        fields = self._least(0, self.broker.master.address)
        fields["haBrokerAddr"] = "{}:{}".format(*self.broker.master.copied_from)
        command = Command(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, next(_NUMBERS), 0, fields)
        self.acted_at = len(self.stage.seen)
        self.returning = self._ask(command, self.broker.address)
        return "the slave learns that its master is back"

    @staticmethod
    def _least(number: int, address: tuple[str, int]) -> dict[str, str]:
        """Return the fields of a message about a group's least broker id (`NotifyMinBrokerIdChangeRequestHeader`)."""
        return {"minBrokerId": str(number), "brokerName": "java-broker", "minBrokerAddr": "{}:{}".format(*address)}

    def broke_off(self, _move: Move) -> str:
        assert self.returning is not None
        peer, opaque = self.returning
        self.stage.until(lambda: opaque in peer.replies or not peer.is_open, WITHIN_S)
        if opaque not in peer.replies:
            raise NotFollowedError("the broker does not respond to the message that its master is back")
        reply = peer.replies[opaque][0]
        if reply.code == ResponseCode.SUCCESS:
            raise OtherwiseError("the traversal after the master's return reaches its end")
        return (
            f"the message about the master is answered with code {reply.code}: {(reply.remark or '').partition(',')[0]}"
        )

    def ordered(self, _move: Move) -> str:
        self._number_queues()
        return ""

    def align(self, _move: Move) -> str:
        """Wait for the end of a scan round, so that the next round is a full period away."""

        def just() -> bool:
            return time.monotonic() - self.stage.last_s.get("rounded", 0.0) < JUST_S

        self.stage.until(just, WITHIN_S)
        self.anchor_s, self.ticks = self.stage.last_s.get("rounded", time.monotonic()), 0
        return ""

    def tick(self, move: Move) -> str:
        if not any(self._waits(slot) for slot in self.slots.values()):
            # In this run only the scan counts ticks, and another move waits for the scan.
            return "no pull waits, so no time has to pass"
        if not self.ticks:
            self.anchor_s = max(self.anchor_s, time.monotonic() - JUST_S)
        self.ticks += move.number
        self._serve_until(self.anchor_s + self.ticks * self.schedule.tick_ms / 1e3)
        return f"{move.number} tick of {self.schedule.tick_ms:,} ms has passed"

    def _waits(self, slot: _Slot) -> bool:
        return slot.peer is not None and slot.peer.is_open and slot.opaque not in slot.peer.replies

    def deadline(self, move: Move) -> str:
        slot = self.slots[move.slot]
        self._serve_until(slot.sent_s + self.schedule.hold_ms / 1e3)
        late_ms = (time.monotonic() - slot.sent_s) * 1e3 - self.schedule.hold_ms
        return f"{self._noun} {move.slot} is {late_ms:,.0f} ms past its deadline"

    def _serve_until(self, at_s: float) -> None:
        self.stage.until(lambda: time.monotonic() >= at_s, max(0.0, at_s - time.monotonic()))

    def stop(self, _move: Move) -> str:
        # A thread at a breakpoint would keep the broker from stopping.
        self.free(Move("free"))
        self.broker.stop()
        if not self.stage.until(
            lambda: all(not slot.peer.is_open for slot in self.slots.values() if slot.peer), WITHIN_S
        ):
            raise NotFollowedError("the broker does not stop")
        return "the broker stops"

    # -- comparing the answers with the schedule -------------------------------------------------------------

    def _compare(self, still: Sequence[bool]) -> None:
        """Check that the broker has sent no answer to a pull that is unanswered in the specification."""
        self.stage.until(lambda: False, 0)
        for number, is_open in enumerate(still):
            if is_open:
                self._refuse_reply(number)

    def _refuse_reply(self, number: int) -> None:
        slot = self.slots.get(number)
        if slot is not None and slot.peer is not None and slot.opaque in slot.peer.replies:
            code = slot.peer.replies[slot.opaque][0].code
            raise OtherwiseError(
                f"{self._noun} {number} is answered (code {code}), but the specification leaves it unanswered"
            )

    def answer(self, move: Move) -> str:
        slot = self.slots[move.slot]
        peer = slot.peer
        assert peer is not None
        self.stage.until(lambda: slot.opaque in peer.replies or not peer.is_open, WITHIN_S)
        if slot.opaque not in peer.replies:
            self._refuse_unfit()
            raise NotFollowedError(f"{self._noun} {move.slot} is not answered within {WITHIN_S:g} s")
        reply, at_s = peer.replies[slot.opaque]
        is_found = reply.code == ResponseCode.SUCCESS
        if move.word and is_found != (move.word == FOUND):
            raise OtherwiseError(
                f"{self._noun} {move.slot} is answered with code {reply.code}, but the specification expects "
                f"{move.word}"
            )
        since = [f"{(at_s - slot.sent_s) * 1e3:,.0f} ms after it was sent"]
        if is_found and self.shown_at_s:
            since.append(f"{(at_s - max(self.shown_at_s.values())) * 1e3:,.0f} ms after its message became visible")
        return f"{self._noun} {move.slot} is answered with code {reply.code}, {', '.join(since)}"

    def expired(self, move: Move) -> str:
        """Check that a pop is answered with the message, and only because its deadline has passed."""
        slot = self.slots[move.slot]
        said = self.answer(Move("answer", slot=move.slot, word=FOUND))
        assert slot.peer is not None
        early_ms = self.schedule.hold_ms - (slot.peer.replies[slot.opaque][1] - slot.sent_s) * 1e3
        if early_ms > EARLY_MS:
            raise OtherwiseError(f"{said}, {early_ms:,.0f} ms before its deadline")
        return said

    def silent(self, move: Move) -> str:
        self.stage.until(lambda: False, 0)
        self._refuse_reply(move.slot)
        return f"{self._noun} {move.slot} is unanswered"

    def gone(self, move: Move) -> str:
        self._refuse_reply(move.slot)
        return f"the connection of {self._noun} {move.slot} ended without an answer"

    def untouched(self, move: Move) -> str:
        opaque = self.slots[move.slot].opaque
        later = self.stage.seen[self.ended_at :]
        touched = next((each for each in later if each.request == opaque and _takes_up(each)), None)
        if touched is not None:
            raise OtherwiseError(f"{touched.thread} reaches {self._noun} {move.slot} (at {touched.gate})")
        return f"no thread reaches {self._noun} {move.slot}"

    def look(self, move: Move) -> str:
        opaque = self.slots[move.slot].opaque

        def looked() -> bool:
            later = self.stage.seen[self.ended_at :]
            return any(each.request == opaque and each.gate in {"each", "scan"} for each in later)

        if not self.stage.until(looked, WITHIN_S):
            raise OtherwiseError(f"no thread checks {self._noun} {move.slot} again")
        return f"a traversal checks {self._noun} {move.slot}"

    def visit(self, move: Move) -> str:
        if not self.stage.until(lambda: self._visits(move.queue, self.ended_at), WITHIN_S):
            raise OtherwiseError(f"the scan does not reach queue {move.queue} again")
        return f"the scan reaches queue {move.queue}"

    def unvisited(self, move: Move) -> str:
        if self._visits(move.queue, self.round_at):
            raise OtherwiseError(f"the round reached queue {move.queue}")
        return f"the round did not reach queue {move.queue}"

    def _visits(self, queue: int, since: int) -> bool:
        wanted = self.queue_ids[queue]
        seen = self.stage.seen[since:]
        return any(each.gate == "queue" and each.topic == self.topic and each.queue == wanted for each in seen)

    def _number_queues(self) -> None:
        """Number the specification's queues in the order in which the broker's scan visits them.

        Java traverses its table in the order of the keys' hashes, but in the specification a round may begin at any
        queue.
        """
        came = dict.fromkeys(
            each.queue for each in self.stage.seen if each.gate == "queue" and each.topic == self.topic
        )
        scanned = [move.queue for step in self.schedule.steps for move in step.moves if move.gates == ("queue",)]
        order = list(dict.fromkeys(each for each in scanned if each >= 0))
        rest = [each for each in range(self.schedule.queues) if each not in order]
        if len(came) == self.schedule.queues:
            self.queue_ids = dict(zip([*order, *rest], came, strict=True))


_DO: Final[Mapping[str, Callable[[_Player, Move], str]]] = {
    "create": _Player.create,
    "send": _Player.send,
    "pull": _Player.pull,
    "close": _Player.close,
    "commit": _Player.commit,
    "offset": _Player.offset,
    "tick": _Player.tick,
    "deadline": _Player.deadline,
    "align": _Player.align,
    "stop": _Player.stop,
    "until": _Player.until,
    "go": _Player.go,
    "throw": _Player.throw,
    "free": _Player.free,
    "answer": _Player.answer,
    "silent": _Player.silent,
    "gone": _Player.gone,
    "untouched": _Player.untouched,
    "look": _Player.look,
    "visit": _Player.visit,
    "unvisited": _Player.unvisited,
    "acts": _Player.acts,
    "returns": _Player.returns,
    "broke_off": _Player.broke_off,
    "ordered": _Player.ordered,
    "pop": _Player.pop,
    "turn": _Player.turn,
    "expired": _Player.expired,
}
