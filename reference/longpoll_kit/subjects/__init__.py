"""Ready-made subjects: the kit tests these services by their URL, without any code of yours.

Each module is for one service, and uses a client library that users of the service know. The module's
`longpoll.LongPollSubject` declares what the service's documentation promises, and cites the source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from longpoll_kit.errors import ServiceError, SubjectError
from longpoll_kit.subject import LongPollSubject
from longpoll_kit.subjects.http_description import read

REDIS: Final = dict.fromkeys(("blpop", "blmove", "xread", "xreadgroup"), "on_redis.RedisSubject")
SQS: Final = {"standard": "on_sqs.SqsSubject"}
HTTP: Final = {"": "over_http.HttpSubject"}
SCHEMES: Final[Mapping[str, Mapping[str, str]]] = {
    "redis": REDIS,
    "rediss": REDIS,
    "unix": REDIS,
    "nats": {"pull": "on_nats.NatsSubject"},
    "kafka": {"fetch": "on_kafka.FetchSubject", "share": "kafka_share.ShareSubject"},
    "sqs+http": SQS,
    "sqs+https": SQS,
    "beanstalkd": {"reserve": "on_beanstalkd.BeanstalkdSubject"},
    "etcd": dict.fromkeys(("watch", "newest"), "on_etcd.EtcdSubject"),
    "http": HTTP,
    "https": HTTP,
}
"""Maps a URL's scheme and a mode to a module and class. The first mode of a scheme is the default mode."""


def subject_for(url: str, mode: str | None = None, service: Path | None = None) -> Callable[[], LongPollSubject]:
    """Return a function that creates subjects of the service at a URL.

    The returned function raises ServiceError if the service does not answer.

    Args:
        url: Such as `redis://127.0.0.1:6379` or `http://127.0.0.1:8080`.
        mode: One of the modes of `SCHEMES`; the first by default.
        service: For HTTP: the file that describes requests and answers (docs/kit.md).

    Raises:
        SubjectError: The URL, the mode or the file cannot be used.
        ModuleNotFoundError: The service's client is not installed.
    """
    try:
        split = urlsplit(url)
        scheme, _port = split.scheme, split.port
    except ValueError as error:
        raise SubjectError(f"{url!r} is not a URL: {error}") from None
    modes = SCHEMES.get(scheme)
    if modes is None:
        raise SubjectError(f"{url!r} has no known scheme; write one of {', '.join(f'{each}://' for each in SCHEMES)}")
    how: Any = next(iter(modes)) if mode is None else mode
    if how not in modes:
        raise SubjectError(f"{scheme}:// has no mode {mode!r}; write one of {', '.join(modes)}")
    if (service is None) == (modes is HTTP):
        raise SubjectError(
            "a service over HTTP needs a file that describes its requests: --service FILE (docs/kit.md)"
            if service is None
            else f"--service describes a service over HTTP; {scheme}:// needs none"
        )
    module, _, name = modes[how].partition(".")
    # Import only this module, because the other services' clients may not be installed.
    found = import_module(f"longpoll_kit.subjects.{module}")
    return partial(_made, url, getattr(found, name), how if service is None else read(service))


def _made(url: str, kind: Any, how: object) -> LongPollSubject:
    try:
        made: LongPollSubject = kind(url, how)
    except kind.gone as error:
        why = str(error) or type(error).__name__
        raise ServiceError(f"{url} does not answer: {why}; start the server, or check address and rights") from None
    return made
