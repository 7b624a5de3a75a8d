"""The property suite over the wire: a served broker, driven through real sockets beside a plain model.

`run_suite(runtime, subject, ...)` runs it against an `EmbeddedSubject` (started and restarted here) or against any
RocketMQ broker by its address, a `RemoteSubject`; a `ServedMachine` that names one is a test of its own. From the
outside in: `suite` runs, `machine` chooses the steps, `driver` does them, `model` judges them; `connection`, `requests`
and `answers` are the wire.

Leaves out what cannot be seen from a client: the history is the judge's.
"""

from longpoll.wire.suite.machine import ServedMachine
from longpoll.wire.suite.model import ROCKETMQ, STRICT, Expectations, ViolationError
from longpoll.wire.suite.subject import EmbeddedSubject, RemoteSubject, Subject
from longpoll.wire.suite.suite import SuiteReport, run_suite

__all__ = [
    "ROCKETMQ",
    "STRICT",
    "EmbeddedSubject",
    "Expectations",
    "RemoteSubject",
    "ServedMachine",
    "Subject",
    "SuiteReport",
    "ViolationError",
    "run_suite",
]
