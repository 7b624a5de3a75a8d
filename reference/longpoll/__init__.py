"""Broker long polling: a broker to embed, clients, the law, and a judge of recorded histories.

    import longpoll

    with longpoll.Broker() as broker, longpoll.Producer(broker.name_server) as producer:
        producer.send("Greetings", b"hello")

`Broker` is a broker in this process, `NameServer` a name server for brokers that register at it. `Producer`,
`TransactionProducer`, `PushConsumer`, `PullConsumer` and `Admin` are clients, for it and for any RocketMQ broker;
`RealRuntime` is what they stand on. `check`, `prove` and `explain` ask the law, `judge` weighs a history, `observe`
records one of a broker that runs elsewhere. `LongPollMachine` looks for faults in any long-polling service, of which a
`LongPollSubject` says how to use it, and `HistoryWriter` records what such a service does. What a user can do wrong is
a `UserError`, and every exception that is raised on purpose a `LongpollError`.

These names are stable: from one minor version to the next they take what they took and give what they gave. What else
the packages have may change.

Nothing is imported before it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from longpoll.api import check, explain, judge, observe, prove
    from longpoll.embedded import Broker, NameServer
    from longpoll_client import (
        Admin,
        ConsumerConfig,
        Producer,
        PullConsumer,
        PushConsumer,
        Reject,
        Retry,
        TransactionProducer,
    )
    from longpoll_kit.machine import LongPollMachine
    from longpoll_kit.subject import LongPollSubject, Polled
    from longpoll_recorder.writer import HistoryWriter
    from longpoll_runtime.real import RealRuntime
    from longpoll_spec.errors import LongpollError, UserError

    __version__: str

__all__ = [
    "Admin",
    "Broker",
    "ConsumerConfig",
    "HistoryWriter",
    "LongPollMachine",
    "LongPollSubject",
    "LongpollError",
    "NameServer",
    "Polled",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "RealRuntime",
    "Reject",
    "Retry",
    "TransactionProducer",
    "UserError",
    "__version__",
    "check",
    "explain",
    "judge",
    "observe",
    "prove",
]

_MODULES: Final = {
    "longpoll.embedded": ("Broker", "NameServer"),
    "longpoll.api": ("check", "explain", "judge", "observe", "prove"),
    "longpoll_client": (
        "Admin",
        "ConsumerConfig",
        "Producer",
        "PullConsumer",
        "PushConsumer",
        "Reject",
        "Retry",
        "TransactionProducer",
    ),
    "longpoll_kit.machine": ("LongPollMachine",),
    "longpoll_kit.subject": ("LongPollSubject", "Polled"),
    "longpoll_recorder.writer": ("HistoryWriter",),
    "longpoll_runtime.real": ("RealRuntime",),
    "longpoll_spec.errors": ("LongpollError", "UserError"),
}
_HOMES: Final = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """A name of the door, imported now."""
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - who does not ask need not read it

        return version("longpoll")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = import_module(_HOMES[name])
    except ModuleNotFoundError as error:
        from longpoll.api import ExtraMissingError  # noqa: PLC0415
        from longpoll.extras import missing  # noqa: PLC0415 - only who misses something needs it

        said = missing(error)
        if said is None:
            raise
        raise ExtraMissingError(said) from error
    return getattr(home, name)


def __dir__() -> list[str]:
    """What there is to ask for."""
    return sorted({*globals(), *__all__})
