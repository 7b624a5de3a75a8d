"""The property suite over the wire, with RocketMQ as a subject of the kit (`longpoll_kit`).

`machine` runs it; `subject` sends requests over a `connection`; `model` computes the right answers; `requests` has the
bytes, and `brokers` the brokers under test.
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
