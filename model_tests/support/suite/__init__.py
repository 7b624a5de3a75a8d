"""The property suite over the wire: RocketMQ as a subject of the kit (`longpoll_kit`).

`machine` runs it; `subject` speaks to the broker over a `connection`; `model` has the right answers, `requests` the
bytes, and `brokers` what is tested.
"""

from model_tests.support.suite.brokers import EmbeddedBroker, RemoteBroker
from model_tests.support.suite.machine import RocketMQMachine, machine_of, run_suite
from model_tests.support.suite.model import ROCKETMQ, STRICT, Expectations

__all__ = [
    "ROCKETMQ",
    "STRICT",
    "EmbeddedBroker",
    "Expectations",
    "RemoteBroker",
    "RocketMQMachine",
    "machine_of",
    "run_suite",
]
