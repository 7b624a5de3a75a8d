"""What one member of a group wants: topics, each with its expression, or queues that were chosen by hand.

Values in, values out; a lock, for any thread may ask. Leaves out who is told of it (`membership`, `aio.group`).

Source: `RebalanceImpl.subscriptionInner`, `FilterAPI.java`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from longpoll_client.settings import ConsumerConfig
from longpoll_protocol.bodies import MessageQueue, SubscriptionData
from longpoll_protocol.tags import java_hash
from longpoll_runtime import Runtime
from longpoll_spec.errors import ConfigError

SUBSCRIPTION_COUNT_MAX: Final = 1000


class Wanted:
    """Invariant: `subscriptions` and `assigned` are replaced under `_lock` and never changed.

    `assigned` is None for a member that shares its topics' queues, and then nobody assigns any.
    """

    def __init__(self, runtime: Runtime, config: ConsumerConfig) -> None:
        self.config = config
        self.subscriptions: Mapping[str, SubscriptionData] = {}
        """What is wanted, by topic."""
        self.assigned: frozenset[MessageQueue] | None = None
        """The queues that were chosen by hand."""
        self._runtime = runtime
        self._lock = runtime.lock()

    def make(self, topic: str, expression: str, expression_type: str) -> SubscriptionData:
        """What `want` takes; raises ConfigError. A later one has a higher version: brokers look at that."""
        with self._lock:
            known = self.subscriptions.get(topic)
        version = max(self._runtime.unix_ms(), known.sub_version + 1 if known is not None else 0)
        made = make_subscription(topic, expression, expression_type, version)
        is_same = known is not None and (known.sub_string, known.expression_type) == (made.sub_string, expression_type)
        return known if is_same and known is not None else made

    def want(self, subscription: SubscriptionData) -> None:
        """Want messages of a topic; raises ConfigError."""
        with self._lock:
            if self.assigned is not None:
                raise ConfigError(f"group {self.config.group} has queues assigned here: subscribe, or assign, not both")
            if len(self.subscriptions) >= SUBSCRIPTION_COUNT_MAX and subscription.topic not in self.subscriptions:
                raise ConfigError(f"{SUBSCRIPTION_COUNT_MAX} topics are subscribed already")
            self.subscriptions = {**self.subscriptions, subscription.topic: subscription}

    def leave_topic(self, topic: str) -> None:
        """Want nothing of a topic any more; raises ConfigError when it is not subscribed."""
        with self._lock:
            if topic not in self.subscriptions or self.assigned is not None:
                raise ConfigError(f"topic {topic[:140]!r} is not subscribed by group {self.config.group} here")
            self.subscriptions = {name: each for name, each in self.subscriptions.items() if name != topic}

    def assign(self, queues: Iterable[MessageQueue], expression: str, expression_type: str) -> None:
        """Want these queues and no others; raises ConfigError."""
        chosen = frozenset(queues)
        topics = sorted({queue.topic for queue in chosen})
        made = {topic: self.make(topic, expression, expression_type) for topic in topics}
        with self._lock:
            if self.assigned is None and self.subscriptions:
                raise ConfigError(
                    f"group {self.config.group} has topics subscribed here: subscribe, or assign, not both"
                )
            self.assigned, self.subscriptions = chosen, made


def make_subscription(topic: str, expression: str, expression_type: str, version: int) -> SubscriptionData:
    """What a heartbeat says of one topic; raises ConfigError when a tag expression names no tag."""
    if expression_type != "TAG" or expression in {"", "*"}:
        text = expression or "*"
        return SubscriptionData(topic=topic, sub_string=text, expression_type=expression_type, sub_version=version)
    tags = frozenset(tag for part in expression.split("||") if (tag := part.strip()))
    if not tags:
        raise ConfigError(f"tag expression {expression[:60]!r} names no tag: write a || b, or * for all")
    return SubscriptionData(
        topic=topic,
        sub_string=expression,
        expression_type=expression_type,
        sub_version=version,
        tags_set=tags,
        code_set=frozenset(java_hash(tag) for tag in tags),
    )
