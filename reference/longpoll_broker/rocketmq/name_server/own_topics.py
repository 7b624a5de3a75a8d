"""The own broker's topics in the routes of its name server.

RocketMQ's name server is not notified of deleted topics: their routes stay until 216 removes them. If 216 removes an
existing topic, its route returns when the topic changes, or when the broker creates a topic itself and registers all.

Other brokers: see `rocketmq.name_server.routes`. Source: `RouteInfoManager.registerBroker`, `deleteTopic`;
`BrokerController.registerIncrementBrokerData` 4.9.7; seen on 4.9.7 and 5.5.0.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import define, field

from longpoll_broker.shared.topics import TopicConfig, Topics


@define(slots=True, eq=False)
class OwnTopics:
    """The routed topics. One thread reads and removes; the broker's threads change `topics`."""

    topics: Topics
    outlive: bool
    """Whether routes outlive the topic and may be removed before it."""
    _forgotten: dict[str, tuple[TopicConfig, int]] = field(factory=dict, init=False)
    """Topics removed by 216, with their configuration and the count of complete registrations at that time."""

    def __attrs_post_init__(self) -> None:
        self.topics.keeps_gone = self.outlive

    def get(self, name: str) -> TopicConfig | None:
        """Returns the topic, or None without a route."""
        topic = self.topics.get(name)
        if topic is None:
            return self.topics.gone.get(name)
        return None if self._is_forgotten(topic) else topic

    def __iter__(self) -> Iterator[TopicConfig]:
        names = {**self.topics.gone, **self.topics.by_name}
        return iter([topic for topic in names.values() if not self._is_forgotten(topic)])

    def forget(self, name: str) -> None:
        """216: remove a topic's route."""
        if not self.outlive:
            return
        self.topics.gone.pop(name, None)
        topic = self.topics.by_name.get(name)
        if topic is not None:
            self._forgotten[name] = (topic, self.topics.told_whole)
        if len(self._forgotten) > len(self.topics.by_name):
            self._forgotten = {name: each for name, each in self._forgotten.items() if name in self.topics.by_name}

    def _is_forgotten(self, topic: TopicConfig) -> bool:
        forgotten = self._forgotten.get(topic.topic_name)
        if forgotten is None:
            return False
        if forgotten[0] is topic and forgotten[1] == self.topics.told_whole:
            return True
        del self._forgotten[topic.topic_name]
        return False
