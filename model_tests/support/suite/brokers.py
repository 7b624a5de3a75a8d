"""The brokers that the property suite tests: any broker by its address, or an embedded one that it may restart.

The suite creates its own topics and groups and deletes the topics at the end, so a shared broker keeps only groups and
used log space.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import attrs
from attrs import Factory, define, field, frozen
from model_tests.support.suite.model import ROCKETMQ, STRICT, Expectations

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig, StoreConfig
from longpoll_protocol.sizes import KIB
from longpoll_runtime import Address, Runtime
from longpoll_runtime.services import Stoppable
from longpoll_spec.policy import STRICT as STRICT_POLICY
from longpoll_spec.policy import Policy


@frozen
class RemoteBroker:
    """An external broker, given by its address, which is never restarted."""

    address: Address
    expectations: Expectations = STRICT
    can_restart: bool = field(default=False, init=False)


SMALL_FILES: Final = StoreConfig(
    commit_log_file_size=256 * KIB, consume_queue_file_size=40 * 20, message_size_max=64 * KIB
)
"""File sizes so small that the few dozen messages of an example fill one file and continue in the next."""


@define(eq=False)
class EmbeddedBroker(Stoppable):
    """A broker in this process with its own store; the end of a `with` block stops it.

    `broker` is the running broker. To inject a fault, a test overrides `started`, which gets each started broker.
    """

    runtime: Runtime
    directory: str
    policy: Policy = STRICT_POLICY
    config: BrokerConfig = field(factory=BrokerConfig)
    store_config: StoreConfig = SMALL_FILES
    expectations: Expectations = field(
        default=Factory(lambda self: expectations_of(self.policy, self.config, self.store_config), takes_self=True)
    )
    can_restart: bool = True
    record_directory: str | None = None
    """The directory of histories. Each start of the broker gets a subdirectory: `1`, `2` and so on."""
    broker: Broker = field(init=False)
    _starts: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.broker = self._start()

    @property
    def address(self) -> Address:
        return self.broker.address

    def restart(self) -> None:
        """Stop the broker cleanly, and start it again on the same store and another port."""
        self.broker.stop()
        self.broker = self._start()

    def started(self, broker: Broker) -> None:
        """Do nothing; a subclass may inject faults into the broker that has just started."""

    def _start(self) -> Broker:
        self._starts += 1
        broker = Broker.start(
            self.runtime,
            self.directory,
            policy=self.policy,
            config=self.config,
            store_config=self.store_config,
            record_directory=None if self.record_directory is None else f"{self.record_directory}/{self._starts}",
        )
        self.started(broker)
        return broker

    def stop(self) -> None:
        self.broker.stop()


def expectations_of(policy: Policy, config: BrokerConfig, store_config: StoreConfig) -> Expectations:
    """Returns the promises of our own broker under a policy."""
    # The remaining promises depend on the policy's family, not on a knob.
    promised = ROCKETMQ if policy.name.startswith("rocketmq") else STRICT
    return attrs.evolve(
        promised,
        scan_period_ms=config.scan_period_ms if policy.expiry == "scan" else None,
        visible_at_ack=policy.notify == "at_append",
        answers_on_stop=policy.on_stop == "answer",
        queue_file_units=store_config.consume_queue_file_size // 20,
    )


TestedBroker: TypeAlias = RemoteBroker | EmbeddedBroker
