"""A broker's topics as its own name server tells of them.

RocketMQ's name server never hears that a topic is gone: its route stays until 216 has it forgotten. A topic that 216
has forgotten while the broker still has it is told of again when it changes, or when the broker makes any topic by
itself, for it registers with all of them then.

Leaves out other brokers (`rocketmq.name_server.routes`). Source: `RouteInfoManager.registerBroker`, `deleteTopic`;
`BrokerController.registerIncrementBrokerData` 4.9.7; seen on 4.9.7 and 5.5.0.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import define, field

from longpoll_broker.shared.topics import TopicConfig, Topics


@define(slots=True, eq=False)
class OwnTopics:
    """One thread reads and forgets; the broker's threads change `topics`."""

    topics: Topics
    outlive: bool
    """Whether what is told outlives the topic, and may be forgotten before it."""
    _forgotten: dict[str, tuple[TopicConfig, int]] = field(factory=dict, init=False)
    """By its name a topic that 216 has forgotten, as it was, and how often all topics had been told by then."""

    def __attrs_post_init__(self) -> None:
        self.topics.keeps_gone = self.outlive

    def get(self, name: str) -> TopicConfig | None:
        """The topic; None when nothing is told of it."""
        topic = self.topics.get(name)
        if topic is None:
            return self.topics.gone.get(name)
        return None if self._is_forgotten(topic) else topic

    def __iter__(self) -> Iterator[TopicConfig]:
        names = {**self.topics.gone, **self.topics.by_name}
        return iter([topic for topic in names.values() if not self._is_forgotten(topic)])

    def forget(self, name: str) -> None:
        """216: tell no more of a topic."""
        if not self.outlive:
            return
        self.topics.gone.pop(name, None)
        topic = self.topics.by_name.get(name)
        if topic is not None:
            self._forgotten[name] = (topic, self.topics.told_whole)

    def _is_forgotten(self, topic: TopicConfig) -> bool:
        forgotten = self._forgotten.get(topic.topic_name)
        if forgotten is None:
            return False
        if forgotten[0] is topic and forgotten[1] == self.topics.told_whole:
            return True
        del self._forgotten[topic.topic_name]
        return False
