"""A simulated correct broker with its clients, in virtual time. It records what happened and when."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from model_tests.judge.second.parts import (
    DELETE_TOPIC,
    EXPRESSIONS,
    MS,
    PULL,
    QUERY,
    SEND,
    START_NS,
    TAGS,
    UPDATE,
    US,
    Consumer,
    Disk,
    Life,
    Plan,
    Pull,
    Queue,
    Told,
    matches,
)


class World:
    def __init__(self, plan: Plan, broker: str, chance: random.Random) -> None:
        self.plan = plan
        self.broker = broker
        self.chance = chance
        self.disk = Disk()
        self.lives: list[Life] = []
        self.told: list[Told] = []
        self._agenda: list[tuple[int, int, Life, Callable[[int], None]]] = []
        self._order = itertools.count()
        self._names = itertools.count(1)
        self._ids = itertools.count(1)
        self._quiet_until = 0
        """No client acts before this time, because only then is it certain that a deletion has taken effect."""

    def run(self) -> list[Told]:
        now = START_NS + self.chance.randrange(10**9)
        for number in range(self.plan.lives):
            life = Life(self.broker, number)
            self.lives.append(life)
            now = self._live(life, now) + self.chance.randrange(5 * MS, 300 * MS)
        self.told.sort(key=lambda one: one["at_ns"])
        return self.told

    # -- a run of the broker ------------------------------------------------------------------------------------------

    def _live(self, life: Life, now: int) -> int:
        self.tell(life, now, "source_started")
        for topic, queues in self.disk.topics.items():
            for number, queue in queues.items():
                now += 3 * US
                queue.held.clear()
                self.tell(life, now, "make_visible", topic=topic, queue=number, visible_end=queue.end)
        self._open_clients(life, now)
        last = number_told = len(self.told)
        share = self.plan.events // self.plan.lives
        while self._agenda and (last - number_told < share or life.is_stopping):
            now, _order, owner, act = heapq.heappop(self._agenda)
            if not owner.is_over:
                act(now)
            last = len(self.told)
        is_killed = life.number + 1 < self.plan.lives and self.chance.random() < self.plan.kills
        if is_killed:
            self._kill(life, now + US)
        else:
            now = self._stop(life, now + US)
        self._agenda.clear()
        return now

    def _kill(self, life: Life, now: int) -> None:
        life.is_over, life.ended_by = True, "kill"
        self.told = [one for one in self.told if one["life"] != life.number or one["at_ns"] <= now]
        for connection in sorted(life.open):
            self.tell(life, now + self.pause(0.1), "connection_closed", connection=connection)
        if self.plan.lossy_kills:
            for queues in self.disk.topics.values():
                for queue in queues.values():
                    keep = max(queue.start, queue.end - self.chance.randrange(4))
                    del queue.tags[keep:], queue.ids[keep:]
            for key in list(self.disk.committed):
                if self.chance.random() < 0.5:
                    self.disk.committed[key] = self.chance.randrange(self.disk.committed[key] + 1)

    def _stop(self, life: Life, now: int) -> int:
        life.is_stopping, life.ended_by = True, "stop"
        for topic, queues in self.disk.topics.items():
            for queue in queues.values():
                held, queue.held = queue.held, []
                for pull in held if self.plan.answers_on_stop else ():
                    self._answer_stopped(life, now, topic, queue, pull)
        limit = max([now + 40 * MS, *(until + 10 * MS for until in life.blocked_until.values())])
        while self._agenda and self._agenda[0][0] < limit:
            at, _order, owner, act = heapq.heappop(self._agenda)
            if not owner.is_over:
                act(at)
        life.is_over = True
        for connection in sorted(life.open):
            self.tell(life, limit + self.pause(0.1), "connection_closed", connection=connection)
        self.tell(life, limit + 20 * MS, "source_stopped")
        return limit + 20 * MS

    def _answer_stopped(self, life: Life, now: int, topic: str, queue: Queue, pull: Pull) -> None:
        self.tell(life, now + 2 * US, "stop", topic=topic, queue=pull.queue, request=pull.request)
        self._answer(
            life, now + self.pause(0.3), pull, 19,
            offset_next=pull.offset, offset_min=queue.start, offset_max=queue.end, cause="stopped",
        )  # fmt: skip

    # -- clients -----------------------------------------------------------------------------------------------------

    def _open_clients(self, life: Life, now: int) -> None:
        chance = self.chance
        for topic in ("orders", "bills")[: chance.choice((1, 1, 2))]:
            for number in range(chance.choice((1, 1, 2))):
                producer = self._connect(life, now)
                self.at(life, now + self.pause(8), partial(self._send, life, producer, topic, number))
                for place in range(chance.choice((1, 2))):
                    text = "" if chance.random() < self.plan.undecided else chance.choice(EXPRESSIONS)
                    consumer = Consumer(topic, number, f"group-{place}", text, self._connect(life, now))
                    self.at(life, now + self.pause(1), partial(self._pull, life, consumer))
                if number == 0 and self.plan.commits:
                    asker = Consumer(topic, number, "group-0", "*", self._connect(life, now))
                    self.at(life, now + self.pause(20), partial(self._commit_or_ask, life, asker))

    def _connect(self, life: Life, now: int) -> str:
        name = f"{self.broker[-1]}{next(self._names)}"
        life.open.add(name)
        self.tell(life, now + self.pause(0.05), "connection_opened", connection=name)
        return name

    def _close(self, life: Life, now: int, connection: str) -> None:
        life.open.discard(connection)
        for queues in self.disk.topics.values():
            for queue in queues.values():
                queue.held = [pull for pull in queue.held if pull.connection != connection]
        self.tell(life, now, "connection_closed", connection=connection)

    # -- sends -------------------------------------------------------------------------------------------------------

    def _send(self, life: Life, connection: str, topic: str, number: int, now: int) -> None:
        chance, plan = self.chance, self.plan
        if life.is_stopping or self._waits(life, partial(self._send, life, connection, topic, number), now):
            return
        is_seen = chance.random() >= plan.hidden
        request = f"{connection}-{next(self._names)}"
        place = {"topic": topic, "queue": number}
        asked = {"request": request, "connection": connection}
        ids = [next(self._ids)]
        if is_seen:
            self.tell(life, now, "request_received", **place, **asked, code=SEND, ids=ids)
        done = now + self.pause(0.3)
        if is_seen and chance.random() < plan.refusals:
            self.at(life, done, partial(self._refuse, life, place | asked, chance.choice((13, 2, 14))))
        else:
            self.at(life, done, partial(self._append, life, topic, number, (asked if is_seen else {}) | {"ids": ids}))
        if chance.random() < plan.deletions:
            self.at(life, now + self.pause(5), partial(self._delete, life, connection, topic))
        self.at(life, done + self.pause(15), partial(self._send, life, connection, topic, number))

    def _refuse(self, life: Life, fields: Told, code: int, now: int) -> None:
        if fields["connection"] in life.open:
            self.tell(life, now, "answer_sent", **fields, code=code, cause="error")

    def _append(self, life: Life, topic: str, number: int, asked: Told, now: int) -> None:
        queues = self.disk.topics.setdefault(topic, {})
        queue = queues.setdefault(number, Queue())
        tag, offset = self.chance.choice(TAGS), queue.end
        place: Told = {"topic": topic, "queue": number}
        self.tell(life, now, "append", **place, queue_offset=offset, tag=tag)
        visible = now + 4 * US
        queue.tags.append(tag)
        queue.ids += asked["ids"]
        self.tell(life, visible, "make_visible", **place, visible_end=queue.end)
        self._notify(life, visible, topic, queue, tag)
        if "request" in asked:
            self.at(
                life,
                visible + self.pause(0.3),
                partial(self._acknowledge, life, place | asked, offset, tag),
            )
        if self.chance.random() < self.plan.retention:
            queue.start = self.chance.randrange(queue.start, queue.end + 1)

    def _acknowledge(self, life: Life, fields: Told, offset: int, tag: str, now: int) -> None:
        if fields["connection"] in life.open:
            self.tell(life, now, "message_acknowledged", **fields, queue_offset=offset, tag=tag)

    def _notify(self, life: Life, now: int, topic: str, queue: Queue, tag: str) -> None:
        held, queue.held = queue.held, []
        for pull in held:
            about: Told = {"topic": topic, "queue": pull.queue, "request": pull.request}
            self.tell(life, now + 3 * US, "take", **about, visible_end=queue.end)
            if queue.end > pull.offset and matches(pull.consumer.expression, tag):
                self.at(life, now + self.pause(1), partial(self._run, life, pull, "woken"))
            else:
                self.tell(life, now + 6 * US, "keep", **about, visible_end=queue.end)
                queue.held.append(pull)

    def _delete(self, life: Life, connection: str, topic: str, now: int) -> None:
        if life.is_stopping or connection not in life.open:
            return
        self.tell(life, now, "request_received", connection=connection, code=DELETE_TOPIC, topic=topic)
        self.at(life, now + self.pause(0.5), partial(self._deleted, life, topic))

    def _waits(self, life: Life, act: Callable[[int], None], now: int) -> bool:
        if now < self._quiet_until:
            self.at(life, self._quiet_until + self.pause(3), act)
        return now < self._quiet_until

    def _deleted(self, life: Life, topic: str, now: int) -> None:
        if self.chance.random() < 0.5:
            self._quiet_until = now + self.chance.randrange(5_500, 9_000) * MS
        for queue in self.disk.topics.pop(topic, {}).values():
            held, queue.held = queue.held, []
            for pull in held:
                self.at(life, now + self.pause(0.2), partial(self._run, life, pull, "error"))
        for key in [key for key in self.disk.committed if key[1] == topic]:
            del self.disk.committed[key]

    # -- pulls -------------------------------------------------------------------------------------------------------

    def _pull(self, life: Life, consumer: Consumer, now: int) -> None:
        chance, plan = self.chance, self.plan
        if life.is_stopping or self._waits(life, partial(self._pull, life, consumer), now):
            return
        if chance.random() < plan.closes:
            self._close(life, now, consumer.connection)
            consumer.connection = self._connect(life, now + 10 * US)
        if chance.random() < plan.jumps:
            consumer.offset = chance.choice((0, -1, max(0, consumer.offset - 2), consumer.offset + 3))
        number = consumer.queue if chance.random() >= plan.refusals else 99
        commits = consumer.offset > 0 and chance.random() < plan.commits
        pull = Pull(
            consumer, f"{consumer.connection}-{next(self._names)}", consumer.connection, consumer.offset,
            chance.choice((32, 32, 2, 1)), chance.random() < 0.9, chance.choice((15, 40, 40, 120, 0, 500)), now, number,
        )  # fmt: skip
        self.tell(
            life, now, "request_received", topic=consumer.topic, queue=number, request=pull.request,
            connection=pull.connection, code=PULL, group=consumer.group, offset=pull.offset, count_max=pull.count_max,
            may_hold=pull.may_hold, timeout_ms=pull.timeout_ms,
            expression_type="TAG" if consumer.expression else "", expression=consumer.expression,
            **({"commit_offset": consumer.offset} if commits else {}),
        )  # fmt: skip
        if chance.random() < plan.blocks:
            self._block(life, now + self.pause(2), pull.connection)
        if chance.random() < plan.closes:
            self.at(life, now + self.pause(20), partial(self._leave, life, consumer, pull.connection))
        self.at(life, now + self.pause(0.1), partial(self._read, life, pull, consumer.offset if commits else -1))

    def _leave(self, life: Life, consumer: Consumer, connection: str, now: int) -> None:
        if connection not in life.open or consumer.connection != connection:
            return
        self._close(life, now, connection)
        consumer.connection = self._connect(life, now + 10 * US)
        self.at(life, now + self.pause(3), partial(self._pull, life, consumer))

    def _block(self, life: Life, now: int, connection: str) -> None:
        until = now + self.chance.randrange(20 * MS, 300 * MS)
        if connection in life.blocked_until:
            return
        life.blocked_until[connection] = until
        self.tell(life, now, "blocked", connection=connection, direction="answers")
        self.tell(life, until, "unblocked", connection=connection, direction="answers")

    def _read(self, life: Life, pull: Pull, commit_offset: int, now: int) -> None:
        consumer = pull.consumer
        code, fields = self._look(pull)
        if commit_offset >= 0 and fields:
            key = (consumer.group, consumer.topic, pull.queue)
            self.disk.committed[key] = max(commit_offset, self.disk.committed.get(key, -1))
        if code != 19 or not pull.may_hold:
            self._answer(life, now + self.pause(0.2), pull, code, **fields, cause="immediate")
            return
        queue = self.disk.topics.get(consumer.topic, {}).setdefault(pull.queue, Queue())
        if life.is_stopping and self.plan.answers_on_stop:
            self._answer_stopped(life, now, consumer.topic, queue, pull)
            return
        if pull.connection not in life.open:
            return
        about: Told = {"topic": consumer.topic, "queue": pull.queue, "request": pull.request}
        self.tell(life, now + US, "hold", **about, visible_end=pull.offset)
        self.tell(life, now + 2 * US, "recheck", **about, visible_end=queue.end)
        queue.held.append(pull)
        life.held_most = max(life.held_most, sum(len(q.held) for t in self.disk.topics.values() for q in t.values()))
        deadline = pull.received_ns + (pull.timeout_ms + 1) * MS
        self.at(life, max(now + 3 * US, deadline + self.pause(1)), partial(self._expire, life, queue, pull))

    def _expire(self, life: Life, queue: Queue, pull: Pull, now: int) -> None:
        if pull in queue.held:
            queue.held.remove(pull)
            about: Told = {"topic": pull.consumer.topic, "queue": pull.queue, "request": pull.request}
            self.tell(life, now, "expire", **about)
            self._run(life, pull, "expired", now + US)

    def _run(self, life: Life, pull: Pull, cause: str, now: int) -> None:
        code, fields = self._look(pull)
        self.tell(life, now, "run", topic=pull.consumer.topic, queue=pull.queue, request=pull.request)
        self._answer(life, now + self.pause(0.2), pull, code, **fields, cause=cause)

    def _look(self, pull: Pull) -> tuple[int, Told]:
        """Return the code and fields of the answer that RocketMQ would give to a pull now."""
        queues = self.disk.topics.get(pull.consumer.topic)
        if queues is None:
            return 17, {}
        if pull.queue > 8:
            return 1, {}
        queue = queues.setdefault(pull.queue, Queue())
        bounds = {"offset_min": queue.start, "offset_max": queue.end}
        offset = pull.offset
        if queue.end == 0:
            return (19 if offset == 0 else 21), {"offset_next": 0, **bounds}
        if offset < queue.start:
            return 21, {"offset_next": queue.start, **bounds}
        if offset >= queue.end:
            return (19 if offset == queue.end else 21), {"offset_next": queue.end, **bounds}
        return self._scanned(queue, pull, bounds)

    def _scanned(self, queue: Queue, pull: Pull, bounds: Told) -> tuple[int, Told]:
        most = min(pull.count_max, self.chance.choice((32, 32, 3)))
        taken: list[int] = []
        offset = pull.offset
        while offset < queue.end and len(taken) < most:
            if matches(pull.consumer.expression, queue.tags[offset]):
                taken.append(offset)
            offset += 1
        ids = [queue.ids[each] for each in taken]
        return (0 if taken else 20), {"offset_next": offset, **bounds, "offsets": taken, "ids": ids}

    def _answer(self, life: Life, now: int, pull: Pull, code: int, **fields: Any) -> None:
        self.at(life, now, partial(self._answered, life, pull, code, fields))

    def _answered(self, life: Life, pull: Pull, code: int, fields: Told, now: int) -> None:
        consumer = pull.consumer
        if pull.connection not in life.open:
            return
        seen = max(now, life.blocked_until.get(pull.connection, 0) + self.pause(0.1))
        if seen > now + MS and life.blocked_until.get(pull.connection, 0) > now:
            self.at(life, seen, partial(self._answered, life, pull, code, fields))
            return
        self.tell(
            life, now, "answer_sent", topic=consumer.topic, queue=pull.queue, request=pull.request,
            connection=pull.connection, code=code, **fields,
        )  # fmt: skip
        if life.is_stopping:
            return
        if pull.connection == consumer.connection:
            consumer.offset = fields.get("offset_next", consumer.offset)
            self.at(life, now + self.pause(2 if code != 17 else 10), partial(self._pull, life, consumer))

    # -- committed offsets -------------------------------------------------------------------------------------------

    def _commit_or_ask(self, life: Life, asker: Consumer, now: int) -> None:
        if life.is_stopping or self._waits(life, partial(self._commit_or_ask, life, asker), now):
            return
        place: Told = {"topic": asker.topic, "queue": asker.queue, "connection": asker.connection}
        is_commit = self.chance.random() < 0.4
        code = UPDATE if is_commit else QUERY
        offset = self.chance.randrange(8)
        is_one_way = is_commit and self.chance.random() < 0.3
        request = f"{asker.connection}-{next(self._names)}"
        fields = place if is_one_way else place | {"request": request}
        told = {"commit_offset": offset} if is_commit else {}
        self.tell(life, now, "request_received", **fields, code=code, group=asker.group, **told)
        self.at(life, now + self.pause(0.2), partial(self._serve_offset, life, asker, fields, code, offset))
        self.at(life, now + self.pause(25), partial(self._commit_or_ask, life, asker))

    def _serve_offset(  # noqa: PLR0917 - bound before its moment
        self, life: Life, asker: Consumer, fields: Told, code: int, offset: int, now: int
    ) -> None:
        key = (asker.group, asker.topic, asker.queue)
        answer: Told = {"code": 0}
        if code == UPDATE:
            self.disk.committed[key] = offset
        elif key in self.disk.committed:
            answer["offset"] = self.disk.committed[key]
        else:
            queue = self.disk.topics.get(asker.topic, {}).get(asker.queue, Queue())
            answer |= {"offset": 0} if queue.start == 0 else {"code": 22}
        if "request" in fields:
            self.at(life, now + self.pause(0.1), partial(self._tell_offset, life, fields | answer))

    def _tell_offset(self, life: Life, fields: Told, now: int) -> None:
        if fields["connection"] in life.open:
            self.tell(life, now, "answer_sent", **fields)

    # -- time --------------------------------------------------------------------------------------------------------

    def pause(self, mean_ms: float) -> int:
        """A random time of at least 10 us, rarely over three times the mean and never over five times."""
        return 10 * US + min(int(self.chance.expovariate(1 / (mean_ms * MS))), int(5 * mean_ms * MS))

    def at(self, life: Life, moment: int, act: Callable[[int], None]) -> None:
        heapq.heappush(self._agenda, (moment, next(self._order), life, act))

    def tell(self, life: Life, at_ns: int, event: str, **fields: Any) -> None:
        self.told.append({"event": event, "at_ns": at_ns, "life": life.number, "broker": self.broker, **fields})


def worlds(plan: Plan) -> Iterator[World]:
    chance = random.Random(plan.seed)
    for number in range(plan.brokers):
        world = World(plan, f"broker-{number}", random.Random(chance.randrange(2**62)))
        world.run()
        yield world
