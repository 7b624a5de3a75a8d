"""Ready subjects: services that the kit tests without a line of your own, by their URL.

One module per service, on the client that its users know. Their `longpoll.LongPollSubject` declares what the service's
documentation promises, and names the place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from longpoll_kit.errors import SubjectError
from longpoll_kit.subject import LongPollSubject

SCHEMES: Final = ("redis", "rediss", "unix", "http", "https")


def subject_for(url: str, mode: str | None = None, service: Path | None = None) -> Callable[[], LongPollSubject]:
    """A function that makes subjects of the service at a URL.

    Args:
        url: Such as `redis://127.0.0.1:6379` or `http://127.0.0.1:8080`.
        mode: For Redis: blpop, blmove, xread or xreadgroup; the first by default.
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
    if scheme in {"http", "https"}:
        if service is None:
            raise SubjectError(
                "a service over HTTP needs a file that describes its requests: --service FILE (docs/kit.md)"
            )
        from longpoll_kit.subjects import over_http  # noqa: PLC0415 - only one service's client is needed

        return partial(over_http.HttpSubject, url, over_http.read(service))
    from longpoll_kit.subjects import on_redis  # noqa: PLC0415 - the same

    return partial(on_redis.RedisSubject, url, on_redis.mode_of(mode))
