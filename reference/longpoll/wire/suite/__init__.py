"""The property suite over the wire: a served broker, driven through real sockets next to a plain model.

`run_suite(runtime, subject, ...)` runs it against an `EmbeddedSubject` (started and restarted here) or, by its address,
against any RocketMQ broker, a `RemoteSubject`. A `ServedMachine` with a subject is a test by itself. From the outside
in: `suite` runs, `machine` chooses the steps, `driver` performs them, `model` judges them; `connection`, `requests` and
`answers` are the wire.

The broker's internal steps are judged from its history (`longpoll_judge`).
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
