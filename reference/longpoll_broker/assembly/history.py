"""Connects a broker to its recorded history, or to nothing.

Events: see `hold.pull_events`, `send.send_events`.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from longpoll_broker.config import BrokerConfig
from longpoll_broker.hold.pull_events import PullEvents, RecordedPullEvents
from longpoll_broker.io.channel import Channel
from longpoll_broker.io.processors import Processor
from longpoll_broker.rocketmq.admin.offset_processor import recorded
from longpoll_broker.send.send_events import RecordedSendEvents, SendEvents
from longpoll_recorder.recorder import HistoryRecorder
from longpoll_runtime import Runtime
from longpoll_spec.policy import Policy


@frozen
class NoHistory:
    """Records nothing, so that callers need no check."""

    is_on: bool = False
    pulls: PullEvents = field(factory=PullEvents)
    sends: SendEvents = field(factory=SendEvents)

    def of_offsets(self, processors: Mapping[int, Processor]) -> Mapping[int, Processor]:
        """Wrap the processors of committed offsets to record their requests and answers."""
        return processors

    def opened(self, channel: Channel) -> None:
        """A connection was opened."""

    def closed(self, channel: Channel) -> None:
        """A connection was closed."""

    def stop(self) -> str:
        """End the history; returns what it lacks, as a sentence for the user, empty if complete."""
        return ""


@frozen
class BrokerHistory(NoHistory):
    """Writes everything to a recorder."""

    recorder: HistoryRecorder = field(kw_only=True)

    @classmethod
    def start(cls, runtime: Runtime, directory: str, policy: Policy, config: BrokerConfig) -> BrokerHistory:
        """Begin a history in a directory, or add a source to an existing one; raises RecordError."""
        recorder = HistoryRecorder(
            runtime,
            directory,
            broker=config.broker_name,
            policy=policy.name,
            hold_limit=-1 if policy.hold_limit == "none" else config.held_count_max,
        )
        return cls(True, RecordedPullEvents(recorder), RecordedSendEvents(recorder), recorder=recorder)

    def of_offsets(self, processors: Mapping[int, Processor]) -> Mapping[int, Processor]:
        """Wrap the processors of offsets."""
        return recorded(processors, self.recorder)

    def opened(self, channel: Channel) -> None:
        """Write `connection_opened`."""
        self.recorder.put("connection_opened", self.recorder.now_ns(), connection=str(channel.number))

    def closed(self, channel: Channel) -> None:
        """Write `connection_closed`."""
        self.recorder.put("connection_closed", self.recorder.now_ns(), connection=str(channel.number))

    def stop(self) -> str:
        """Write the remaining events."""
        return self.recorder.stop()
