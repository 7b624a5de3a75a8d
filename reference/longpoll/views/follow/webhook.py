"""Post each finding to a URL and retry until it is accepted, without delaying the judge.

One thread posts the findings one at a time and in order. It retries after 0.5 s, 1 s, 2 s and so on up to 30 s while
there is no answer, or the answer is 5xx, 408, 425 or 429. Any other answer except 2xx rejects the finding: it is not
retried before the next start. A redirection is a rejection, because following it would turn the POST into a GET. If the
answer to an accepted finding is lost, the receiver gets it again with the same `Longpoll-Finding-Id`.

URLs of webhooks are often secrets, so messages contain only the host.
"""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Callable
from http.client import HTTPException, HTTPMessage
from typing import IO, Final
from urllib.error import HTTPError
from urllib.parse import urlsplit

import msgspec
from attrs import define, field

from longpoll_judge.show.findings_file import Stream
from longpoll_runtime.threads import RealQueue, RealThread, spawn
from longpoll_spec.errors import ConfigError

WAITING_MAX: Final = 10_000
"""The most findings that wait to be posted; with a checkpoint the others are posted at the next start."""
ANSWER_S: Final = 5.0
"""Seconds to wait for an answer."""
BACKOFF_S: Final = 0.5
BACKOFF_MAX_S: Final = 30.0
LOOK_S: Final = 0.2
"""Seconds between two checks whether to stop."""
TOO_EARLY: Final = frozenset({408, 425, 429})
"""Rejections that ask for a later retry."""
SERVER_ERROR: Final = 500


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Turns a redirection into an error."""

    def redirect_request(  # noqa: PLR0917 - urllib's
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        """Do not follow it."""


_OPENER: Final = urllib.request.build_opener(_NoRedirect)


def checked_url(url: str) -> str:
    """The URL, if it is valid for posting; raises `ConfigError`."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known or not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError("--webhook needs a URL that accepts findings, such as https://host/path")
    return url


@define(eq=False)
class Webhook:
    """Findings on their way to one URL.

    The posting thread writes the counts, except `offered` and `dropped`.
    """

    url: str
    posted: Stream | None
    """Records accepted findings beyond the end of the process."""
    say: Callable[[str], None]
    """Gets rejections, and the first failure in a row."""
    offered: int = 0
    dropped: int = 0
    taken: int = 0
    refused: int = 0
    failures: int = 0
    """Failed attempts."""
    _waiting: RealQueue[tuple[str, bytes]] = field(factory=lambda: RealQueue(WAITING_MAX))
    _is_last: threading.Event = field(factory=threading.Event)
    """No more findings will be offered."""
    _is_over: threading.Event = field(factory=threading.Event)
    """Stop posting."""
    _thread: RealThread | None = None
    _is_full: bool = False
    """Whether there was no room for the last offered finding."""

    def start(self) -> None:
        """Start posting."""
        self._thread = spawn("webhook", self._run)

    def put(self, name: str, line: bytes) -> None:
        """Queue a finding for posting, unless it was accepted before."""
        if self.posted is not None and name in self.posted.ids:
            return
        self.offered += 1
        if self._waiting.offer((name, line)):
            self._is_full = False
            return
        self.dropped += 1
        if not self._is_full:
            self._is_full = True
            later = "are posted at the next start" if self.posted is not None else "are not posted"
            self.say(f"{WAITING_MAX} findings wait for the webhook at {self._host()}: those that come now {later}")

    @property
    def pending(self) -> int:
        """The number of findings that are neither accepted nor rejected."""
        return self.offered - self.taken - self.refused

    def end(self, patience_s: float) -> None:
        """Post the waiting findings for at most `patience_s` and one answer, and end the thread."""
        assert self._thread is not None, "it was started"
        self._is_last.set()
        self._thread.join(patience_s)
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.is_set():
            item = self._waiting.take(LOOK_S)
            if item is not None:
                self._post_until_taken(*item)
            elif self._is_last.is_set():
                return

    def _post_until_taken(self, name: str, line: bytes) -> None:
        """Post a finding until the webhook accepts or rejects it, or until the thread must end."""
        backoff_s = BACKOFF_S
        while not self._is_over.is_set():
            trouble = self._post(name, line)
            if trouble is None:
                return
            self.failures += 1
            if backoff_s == BACKOFF_S:
                self.say(f"the webhook at {self._host()} did not take a finding: {trouble}; it is tried again")
            self._is_over.wait(backoff_s)
            backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)

    def _post(self, name: str, line: bytes) -> str | None:
        """Post once; None if that settles it, else the error."""
        headers = {"Content-Type": "application/json", "Longpoll-Finding-Id": name, "User-Agent": "longpoll"}
        request = urllib.request.Request(self.url, line, headers, method="POST")  # noqa: S310 - http or https: checked
        try:
            _OPENER.open(request, timeout=ANSWER_S).close()
        except HTTPError as error:
            error.close()
            if error.code in TOO_EARLY or error.code >= SERVER_ERROR:
                return f"it answers {error.code}"
            self.refused += 1
            self.say(f"the webhook at {self._host()} rejects finding {name} with {error.code}; it is not retried")
            return None
        except (OSError, HTTPException, ValueError) as error:
            return type(error).__name__
        self.taken += 1
        self._remember(name)
        return None

    def _remember(self, name: str) -> None:
        """Record that a finding was accepted; if that fails it is posted again at the next start."""
        if self.posted is None:
            return
        try:
            self.posted.put(name, msgspec.json.encode({"id": name}))
        except OSError as error:
            self.say(f"that finding {name} was posted cannot be remembered: {error.strerror}")

    def _host(self) -> str:
        return urlsplit(self.url).hostname or ""
