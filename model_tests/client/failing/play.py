"""Draws schedules of failures and plays them with senders, members, and servers behind proxies and relays.

`accounts` checks the results. A schedule mostly waits, so eight in parallel take hardly longer than one.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final, Literal

from attrs import define, field, frozen
from model_tests.client.failing.accounts import Facts, Happening, Possible, Report, account
from model_tests.client.failing.members import LEAVE_S, Java, Member, Told, java_command, python_command
from model_tests.client.failing.sending import Sends, senders
from model_tests.client.failing.servers import Observed, OurServer, Server, judged
from model_tests.support.broker import client_scenarios as stories

from longpoll.wire.relay import Fault, Relay
from longpoll_client import Admin, ClientError, NoRouteError, Producer, PullConsumer

Kind = Literal[
    "reset",
    "slow",
    "black hole",
    "half-open",
    "restart",
    "kill",
    "names refuse",
    "names mute",
    "names half-open",
    "join",
    "leave",
    "die",
]
NETWORK: Final[tuple[Kind, ...]] = ("reset", "slow", "black hole", "half-open")
SERVERS: Final[tuple[Kind, ...]] = ("restart", "kill")
NAMES: Final[tuple[Kind, ...]] = ("names refuse", "names mute", "names half-open")
MEMBERS_MAX: Final = 3
CALM_S: Final = 2.0
"""A schedule has no faults in this many seconds at its begin and at its end."""


@frozen
class Event:
    """A fault or a change of members."""

    at_s: float
    kind: Kind
    lasts_s: float = field(default=0.0)
    pick: int = field(default=0)
    """A number that decides the remaining choice: which member dies, or which kind of member joins."""


@frozen
class Plan:
    seed: int
    length_s: float
    events: tuple[Event, ...]
    """In order of time; an event begins only after the previous event of its kind has ended."""


def draw(seed: int, length_s: float, pace: float = 1.0) -> Plan:
    """Return a random schedule of this length in seconds; a higher pace gives more events."""
    chance = random.Random(seed)

    def line(kinds: tuple[Kind, ...], gap_s: tuple[float, float], lasts_s: tuple[float, float]) -> Iterator[Event]:
        at_s = CALM_S
        while True:
            at_s += chance.uniform(*gap_s) / pace
            kind = chance.choice(kinds)
            lasts = 0.0 if kind.endswith("half-open") else chance.uniform(*lasts_s)
            if at_s + lasts > length_s - CALM_S:
                return
            yield Event(at_s, kind, lasts, chance.randrange(1 << 16))
            at_s += lasts

    events = [
        *line(NETWORK, (5.0, 20.0), (0.3, 6.0)),
        *line(SERVERS, (20.0, 50.0), (0.2, 4.0)),
        *line(NAMES, (15.0, 40.0), (2.0, 20.0)),
        *_membership(line(("join",), (6.0, 18.0), (0.0, 0.0)), chance.random),
    ]
    return Plan(seed, length_s, tuple(sorted(events, key=lambda event: event.at_s)))


def _membership(moments: Iterator[Event], chance: Callable[[], float]) -> Iterator[Event]:
    """Yield the events in which a member joins, leaves or dies.

    There are one to three members, and two at the begin.
    """
    count = 2
    for moment in moments:
        joins = count == 1 or (count < MEMBERS_MAX and chance() < 0.5)
        kind: Kind = "join" if joins else "leave" if chance() < 0.5 else "die"
        count += 1 if joins else -1
        yield Event(moment.at_s, kind, 0.0, moment.pick)


QUEUES: Final = 4
DRAIN_S: Final = 90.0
"""The time limit from the end of all faults to the delivery of the last message, in seconds."""
NAMES_FAULTS: Final[dict[str, Fault]] = {
    "names refuse": "reset",
    "names mute": "black hole",
    "names half-open": "half-open",
}


def let_pass(time_s: float) -> None:
    """Wait for this time in real seconds."""
    threading.Event().wait(time_s)


@frozen
class Setting:
    """The settings with which a plan is played."""

    server: Server
    home: Path
    java: Java | None
    """How members in Java are started; None if all members are in Python."""
    is_orderly: bool
    late_ms: float
    """The permitted lateness of the broker in ms, which is also the judge's limit."""
    drain_s: float = field(default=DRAIN_S)
    known: frozenset[str] = field(default=frozenset())
    """Clauses of the contract that this broker is known to violate, so the client is not at fault."""


@frozen
class Played:
    plan: Plan
    report: Report
    errors: dict[str, int]
    """Type of error -> number of failed sends."""
    surprises: tuple[str, ...]
    """Violations of the rules for sends and members."""
    verdict: str
    why: str
    """The judge's first finding."""
    convicted_of: tuple[str, ...]
    """Each clause that the judge reports, except the known ones."""
    events: int
    """The number of events that the proxies recorded."""

    def faults(self) -> list[str]:
        """Return sentences about everything that is wrong."""
        report = self.report
        found = [f"{len(report.lost)} lost: {report.lost[:5]}"] if report.lost else []
        found += [f"{len(report.stuck)} stuck: {report.stuck[:5]}"] if report.stuck else []
        found += [f"unexplained: {one}" for one in report.unexplained[:3]]
        found += [f"out of order: {one}" for one in report.out_of_order[:3]]
        found += [*report.not_back[:3], *self.surprises]
        return found + [f"the judge says {self.verdict}: {clause}" for clause in self.convicted_of]


@define(eq=False)
class _Stage:
    """One schedule while it is played."""

    plan: Plan
    setting: Setting
    observed: Observed
    broker: Relay
    names: Relay
    topic: str = ""
    told: Told = field(factory=Told)
    sends: Sends = field(factory=Sends)
    members: list[Member] = field(factory=list)
    """Running members that were neither asked to leave nor killed."""
    gone: list[Member] = field(factory=list)
    happenings: list[Happening] = field(factory=list)
    possible: list[Possible] = field(factory=list)
    _possible_since_ns: int | None = None
    _is_up: bool = True
    _lock: threading.Lock = field(factory=threading.Lock)
    _servers: threading.Lock = field(factory=threading.Lock)
    _network: threading.Lock = field(factory=threading.Lock)
    _naming: threading.Lock = field(factory=threading.Lock)
    _count: int = 0

    @property
    def name_server(self) -> str:
        """The address of the relay in front of the name server."""
        return "{}:{}".format(*self.names.address)

    # ------------------------------------------------------------ members

    def join(self, pick: int) -> Member:
        self._count += 1
        name, group, home = f"member-{self._count}", f"group-{self.topic}", self.setting.home
        is_java = self.setting.java is not None and pick % 2 == 0
        if is_java:
            assert self.setting.java is not None
            kind = "orderly" if self.setting.is_orderly else "threads"
            command = java_command(self.setting.java, self.name_server, self.topic, group, kind)
        else:
            kind = "orderly" if self.setting.is_orderly else ("push", "loop")[pick // 2 % 2]
            command = python_command(self.name_server, self.topic, group, kind)
        member = Member(f"{name}-{'java' if is_java else 'python'}-{kind}", command, self.told, home)
        self.members.append(member)
        return member

    def part(self, event: Event) -> Member:
        member = self.members.pop(event.pick % len(self.members))
        self.gone.append(member)
        if event.kind == "die":
            member.die()
        else:
            member.leave()
        return member

    # ------------------------------------------------------------ what fails

    def happen(self, event: Event) -> None:
        """Start a fault, wait until it is over, and record the two times."""
        begun_ns, member = time.monotonic_ns(), ""
        if event.kind == "join":
            member = self.join(event.pick).name
        elif event.kind in {"leave", "die"}:
            member = self.part(event).name
        elif event.kind in {"restart", "kill"}:
            self._restart(event)
        elif event.kind in NAMES_FAULTS:
            self.names.begin(NAMES_FAULTS[event.kind])
            let_pass(event.lasts_s)
            self.names.end()
        else:
            self._fail(event)
        self.happenings.append(Happening(event.kind, begun_ns, time.monotonic_ns(), member))

    def _fail(self, event: Event) -> None:
        fault: Fault = event.kind  # type: ignore[assignment] # the others are dealt with
        self.broker.begin(fault)
        if fault == "half-open":
            self._look(again=True)
            return
        self._look()
        let_pass(event.lasts_s)
        self.broker.end()
        self._look()

    def _restart(self, event: Event) -> None:
        self._is_up = False
        self._look()
        if event.kind == "kill":
            self.observed.kill()
        else:
            self.observed.stop()
        let_pass(event.lasts_s)
        self.observed.start()
        self.broker.target = self.observed.address
        self._is_up = True
        self._look()

    def _look(self, *, again: bool = False) -> None:
        """Record whether sends can succeed now; with `again`, only sends on new connections can."""
        with self._lock:
            now_ns = time.monotonic_ns()
            is_possible = self._is_up and self.broker.fault in {None, "slow"}
            if self._possible_since_ns is not None and (again or not is_possible):
                self.possible.append(Possible(self._possible_since_ns, now_ns))
                self._possible_since_ns = None
            if is_possible and self._possible_since_ns is None:
                self._possible_since_ns = now_ns

    # ------------------------------------------------------------ the whole

    def play(self) -> None:
        """Run each action at its time; actions that must wait for their end run on separate threads."""
        self._look()
        begun_s = time.monotonic()
        threads = []
        for event in self.plan.events:
            let_pass(max(0.0, begun_s + event.at_s - time.monotonic()))
            if event.kind in {*SERVERS, *NETWORK, *NAMES}:
                threads.append(threading.Thread(target=self._happen_apart, args=(event,)))
                threads[-1].start()
            else:
                self.happen(event)
        for thread in threads:
            thread.join()
        let_pass(max(0.0, begun_s + self.plan.length_s - time.monotonic()))

    def _happen_apart(self, event: Event) -> None:
        """Run an event on its own thread.

        A start takes long on a busy machine, and the next event of the same kind waits for it.
        """
        line = self._servers if event.kind in SERVERS else self._network if event.kind in NETWORK else self._naming
        try:
            with line:
                self.happen(event)
        except (AssertionError, OSError) as error:
            self.sends.surprised(f"{event.kind}: {error}")

    def end_faults(self) -> None:
        """End all faults for new data; clients must still notice which of their connections are dead."""
        for relay in (self.broker, self.names):
            relay.end()
            relay.tell_server()

    def wait_drained(self) -> None:
        """Wait until every acknowledged message was delivered, or the time limit has passed."""
        wanted = {sent.number for sent in self.sends.acknowledged}
        self._wait(lambda: wanted <= self.told.numbers)

    def wait_given(self, places: set[tuple[int, int]]) -> None:
        """Wait until these messages were delivered, or the time limit has passed."""
        self._wait(lambda: places <= self.told.places)

    def _wait(self, condition: Callable[[], bool]) -> None:
        pause, deadline_s = threading.Event(), time.monotonic() + self.setting.drain_s
        while not condition() and time.monotonic() < deadline_s:
            pause.wait(0.05)

    def close_members(self) -> list[str]:
        """Let all members leave; returns the problems."""
        for member in self.members:
            member.leave()
        self.gone += self.members
        self.members.clear()
        deadline_s = time.monotonic() + LEAVE_S
        return [wrong for member in self.gone if (wrong := member.ended(deadline_s))]


def play(plan: Plan, setting: Setting) -> Played:
    with ExitStack() as stack:
        observed = stack.enter_context(Observed(setting.server, setting.home))
        observed.start()
        broker = stack.enter_context(Relay(observed.address))
        names = stack.enter_context(Relay(setting.server.name_server))
        there, here = ("{}:{}".format(*address).encode() for address in (setting.server.address, broker.address))
        assert len(there) == len(here), "the ports must have five digits"
        names.rewrites = {there: here}
        stage = _Stage(plan, setting, observed, broker, names)
        direct = "{}:{}".format(*setting.server.name_server)
        with Admin(direct) as admin:
            stories.wait_for(lambda: bool(admin.masters()), "the broker is registered")
        stage.topic = stack.enter_context(stories.new_topic(direct, QUEUES))
        ending = threading.Event()
        try:
            chance = random.Random(plan.seed)
            for number in range(2):
                stage.happen(Event(0.0, "join", pick=number + 2 * chance.randrange(2)))
            producer = stack.enter_context(Producer(stage.name_server))
            sending = senders(stage.name_server, stage.topic, producer, stage.sends, ending)
            stories.wait_for(
                lambda: {member.name for member in stage.members} <= stage.told.heard, "both members listen"
            )
            stage.play()
            stage.end_faults()
            ending.set()
            surprises = _joined(sending)
            stage._look(again=True)
            stage.wait_drained()
            stored = everything(direct, stage.topic)
            stage.wait_given(set(stored))
        finally:
            ending.set()
            wrong = stage.close_members()
        surprises += wrong
    facts = Facts(
        stage.sends.acknowledged, stage.told.deliveries, stage.told.shares, stage.happenings, stage.possible, stored,
        setting.is_orderly,
    )  # fmt: skip
    verdict, why, convicted_of, events = weighed(observed.histories, setting)
    surprises += stage.sends.surprises
    return Played(plan, account(facts), dict(stage.sends.errors), tuple(surprises), verdict, why, convicted_of, events)


def _joined(threads: Sequence[threading.Thread]) -> list[str]:
    """Wait for the senders' last messages; returns the senders that do not end."""
    for thread in threads:
        thread.join(DRAIN_S)
    return [f"{thread.name} does not end" for thread in threads if thread.is_alive()]


def everything(name_server: str, topic: str) -> dict[tuple[int, int], int]:
    """Return (queue id, offset) -> number, for all messages of a topic in the broker."""
    found: dict[tuple[int, int], int] = {}
    with Admin(name_server) as admin, closing(PullConsumer(name_server, group=f"reads-{topic}", topics=())) as consumer:

        def is_known() -> bool:
            try:
                return len(admin.topic(topic).readable) == QUEUES
            except NoRouteError:
                return False

        stories.wait_for(is_known, "a broker that was started last is registered")
        consumer.assign(admin.topic(topic).readable)
        consumer.start()
        due = sum(row.end - row.first for row in admin.offsets("reads-ends", [topic]))
        while len(found) < due:
            messages = consumer.poll(stories.PATIENCE_S)
            if not messages:
                raise ClientError(f"of {due} messages only {len(found)} can be read")
            found.update(((message.queue_id, message.queue_offset), int(message.body)) for message in messages)
    return found


def weighed(histories: Sequence[Path], setting: Setting) -> tuple[str, str, tuple[str, ...], int]:
    """Return the verdict, the judge's first finding, the violated clauses beyond `known`, and the number of events."""
    result = judged(histories, setting.late_ms, setting.home)
    findings, gaps, events = result["findings"], result["gaps"], result["events"]
    assert isinstance(findings, list)
    assert isinstance(gaps, list)
    assert isinstance(events, int)
    named = [f"{finding['clause']}: {finding['why']}" for finding in findings[:3]] + [str(gap) for gap in gaps[:2]]
    return str(result["verdict"]), "; ".join(named), convictions(result["verdict"], findings, setting.known), events


def convictions(verdict: object, findings: Sequence[dict[str, str]], known: frozenset[str]) -> tuple[str, ...]:
    """Return every clause that a broker violates except the known ones, with the first reason."""
    if verdict != "invalid":
        return ()
    broken = {finding["clause"]: finding["why"] for finding in reversed(findings) if finding["clause"] not in known}
    return tuple(f"{clause}: {why}" for clause, why in broken.items()) if findings else ("it names nothing",)


LENGTH_S: Final = 180.0
OUR_LATE_MS: Final = 3_000.0
"""Our broker wakes and expires pulls at once, but some forty processes share each processor here."""
JAVA_LATE_MS: Final = 9_000.0
"""Java's broker answers a pull whose wakeup was lost in a race only at its scan every 5 s."""


def at_once(plans: Sequence[Plan], setting: Callable[[Plan, Path], Setting], directory: Path) -> list[Played]:
    """Play all plans at the same time, each in its own folder."""

    def one(plan: Plan) -> Played:
        home = directory / f"seed-{plan.seed}"
        home.mkdir()
        return play(plan, setting(plan, home))

    with ThreadPoolExecutor(len(plans)) as pool:
        return list(pool.map(one, plans))


def ours(plan: Plan, home: Path) -> Setting:
    """Return the settings for our broker and members of the Python client, which are orderly if the seed is odd."""
    return Setting(OurServer(home), home, None, plan.seed % 2 == 1, OUR_LATE_MS)


def said(played: Played) -> str:
    """Return a summary of one schedule in a few lines."""
    report = played.report
    return (
        f"seed {played.plan.seed}: {len(played.plan.events)} events, {report.acknowledged} acknowledged, "
        f"{len(report.lost)} lost, {len(report.stuck)} stuck, {len(report.unexplained)} unexplained, "
        f"{len(report.out_of_order)} out of order, "
        f"back after {report.back_s:.1f} s, failures {played.errors}; "
        f"{played.events} events {played.verdict} {played.why}"
    )
