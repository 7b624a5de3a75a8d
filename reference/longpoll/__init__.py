"""Broker long polling: an embeddable broker, clients, the specification, and a judge of recorded histories.

    import longpoll

    with longpoll.Broker() as broker, longpoll.Producer(broker.name_server) as producer:
        producer.send("Greetings", b"hello")

`Broker` is a broker in this process, `NameServer` a name server for brokers that register with it. `Producer`,
`TransactionProducer`, `PushConsumer`, `PullConsumer` and `Admin` are clients for any RocketMQ broker; they run on
`RealRuntime`. `longpoll_client` has the `asyncio` forms of these clients. `check`, `prove` and `explain` query the
specification of a `Policy` or of a file, `judge` checks a history, `observe` records one from a running broker.
`LongPollMachine` tests any long-polling service, given a `LongPollSubject` that adapts it; `HistoryWriter` records such
a service. A user's mistake raises `UserError`; every exception raised on purpose is a `LongpollError`.

These names are stable between minor versions. Everything else in the packages may change.

Modules are imported on first use.
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
        ReceivedMessage,
        Reject,
        Retry,
        TransactionProducer,
        TransactionState,
    )
    from longpoll_kit.machine import LongPollMachine
    from longpoll_kit.subject import LongPollSubject, Polled
    from longpoll_recorder.writer import HistoryWriter
    from longpoll_runtime.real import RealRuntime
    from longpoll_spec.errors import LongpollError, UserError
    from longpoll_spec.policy import Policy

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
    "Policy",
    "Polled",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "RealRuntime",
    "ReceivedMessage",
    "Reject",
    "Retry",
    "TransactionProducer",
    "TransactionState",
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
        "ReceivedMessage",
        "Reject",
        "Retry",
        "TransactionProducer",
        "TransactionState",
    ),
    "longpoll_kit.machine": ("LongPollMachine",),
    "longpoll_kit.subject": ("LongPollSubject", "Polled"),
    "longpoll_recorder.writer": ("HistoryWriter",),
    "longpoll_runtime.real": ("RealRuntime",),
    "longpoll_spec.errors": ("LongpollError", "UserError"),
    "longpoll_spec.policy": ("Policy",),
}
_HOMES: Final = {name: module for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:
    # The function is hidden from type checkers, because they accept any name from a module that has `__getattr__`.

    def __getattr__(name: str) -> Any:
        """Import a public name on first use."""
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
    """The public names."""
    return sorted({*globals(), *__all__})
