"""Ready subjects: services that the kit tests without a line of your own, by their URL.

One module per service, on the client that its users know. Their `longpoll.LongPollSubject` declares what the service's
documentation promises, and names the place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from longpoll_kit.errors import ServiceError, SubjectError
from longpoll_kit.subject import LongPollSubject

SCHEMES: Final = {
    "redis": ("on_redis", "RedisSubject"),
    "rediss": ("on_redis", "RedisSubject"),
    "unix": ("on_redis", "RedisSubject"),
    "nats": ("on_nats", "NatsSubject"),
    "kafka": ("on_kafka", "KafkaSubject"),
    "sqs+http": ("on_sqs", "SqsSubject"),
    "sqs+https": ("on_sqs", "SqsSubject"),
    "beanstalkd": ("on_beanstalkd", "BeanstalkdSubject"),
    "etcd": ("on_etcd", "EtcdSubject"),
    "http": ("over_http", "HttpSubject"),
    "https": ("over_http", "HttpSubject"),
}
"""The scheme of a URL -> module and class."""


def subject_for(url: str, mode: str | None = None, service: Path | None = None) -> Callable[[], LongPollSubject]:
    """A function that makes subjects of the service at a URL; it raises ServiceError if the service does not answer.

    Args:
        url: Such as `redis://127.0.0.1:6379` or `http://127.0.0.1:8080`.
        mode: One of the `MODES` of the service's subject; the first by default.
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
    if scheme not in SCHEMES:
        raise SubjectError(f"{url!r} has no known scheme; write one of {', '.join(f'{each}://' for each in SCHEMES)}")
    module, name = SCHEMES[scheme]
    if module == "over_http" and service is None:
        raise SubjectError("a service over HTTP needs a file that describes its requests: --service FILE (docs/kit.md)")
    found = import_module(f"longpoll_kit.subjects.{module}")  # only one service's client is needed
    kind: Any = getattr(found, name)
    if module == "over_http" and service is not None:
        return partial(_made, url, kind, found.read(service))
    if service is not None:
        raise SubjectError(f"--service describes a service over HTTP; {scheme}:// needs none")
    modes = list(kind.MODES)
    if (mode or modes[0]) not in modes:
        raise SubjectError(f"{scheme}:// has no mode {mode!r}; write one of {', '.join(modes)}")
    return partial(_made, url, kind, mode or modes[0])


def _made(url: str, kind: Any, how: object) -> LongPollSubject:
    """A new subject; raises ServiceError."""
    try:
        made: LongPollSubject = kind(url, how)
    except kind.gone as error:
        why = str(error) or type(error).__name__
        raise ServiceError(f"{url} does not answer: {why}; start the server, or check address and rights") from None
    return made
