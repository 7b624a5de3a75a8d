"""Reports a followed history: each certain finding once, to files and a webhook, and the verdict so far as metrics.

If too many findings come at once, one line with its own name gives the number of the others as `not_told`. A finding
goes to the checkpoint first, then to the file of findings, then to the webhook, then to stderr. If the process ends in
between, the next start completes the other outputs from the checkpoint. All metrics but the lag are from the last
judgement.

One thread posts the findings one at a time and in order. A finding without an answer, or with the answer 5xx, 408, 425
or 429, is retried after 0.5 s, 1 s, 2 s and so on up to 30 s. Any other answer except 2xx rejects the finding until the
next start. A redirection is a rejection, because following it would turn the POST into a GET. If the answer to an
accepted finding is lost, the receiver gets it again with the same `Longpoll-Finding-Id`. URLs of webhooks are often
secrets, so messages contain only the host.
"""

from __future__ import annotations

import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Final
from urllib.error import HTTPError
from urllib.parse import urlsplit

import msgspec
from attrs import define, field, frozen
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from longpoll.exit_codes import NO_ROOM
from longpoll_judge.contract.result import Finding, Result
from longpoll_judge.errors import CheckpointError, ReportNotWrittenError
from longpoll_judge.run.follow import Progress
from longpoll_judge.run.tally import NOT_TOLD, what_is_left
from longpoll_judge.show.findings_file import Names, Stream, open_checkpoint, open_stream
from longpoll_judge.show.standing import STANDING_VERDICTS, standing
from longpoll_runtime.threads import RealQueue, RealThread, spawn
from longpoll_spec.errors import ConfigError

PATIENCE_S: Final = 5.0
"""The longest wait for the webhook at the end."""


@frozen
class Places:
    """Where findings go, by the options of the command."""

    findings: Path | None = None
    checkpoint: Path | None = None
    metrics_port: int | None = None
    webhook: str | None = None

    @property
    def are_any(self) -> bool:
        """Whether any output is named."""
        return self != Places()


@define(eq=False)
class FindingReporter:
    """The findings that were reported, and the outputs for new ones."""

    streams: Sequence[Stream]
    webhook: Webhook | None
    collector: FollowCollector
    say: Callable[[str], None]
    _heard: Names = field(factory=Names)
    _left: set[str] = field(factory=set)
    """Subjects that were announced for the end only."""

    def remember(self, told: Stream) -> None:
        """Send the findings of the checkpoint to the outputs that lack them."""
        for name, line in told.lines():
            self._heard.add(name)
            self._hand_on(name, line)

    def tell(self, result: Result) -> None:
        """Report the new findings of a judgement, and the verdict so far."""
        for finding in result.findings:
            if finding.verdict == "violated" and finding.id not in self._heard:
                self._heard.add(finding.id)
                if self._hand_on(finding.id, msgspec.json.encode(finding)):
                    self.collector.told += 1
                    self.say(_line(finding))
        so_far = standing(result)
        for what in what_is_left(result.gaps).keys() - self._left:
            self._left.add(what)
            self.say(f"reported only at the end: {what}")
        if so_far.not_told:
            self._tell_more(so_far.not_told)
        self.collector.result = result
        self.collector.judgements += 1
        self.say(so_far.sentence())

    def _tell_more(self, count: int) -> None:
        """Report the number of unreported findings, once per number."""
        name, why = f"not-told-{count}", f"{count} {NOT_TOLD}"
        if name not in self._heard:
            self._heard.add(name)
            if self._hand_on(name, msgspec.json.encode({"id": name, "not_told": count, "why": why})):
                self.say(why)

    def tell_last(self, result: Result) -> None:
        """Report the last judgement, unless that was done."""
        if result is not self.collector.result:
            self.tell(result)

    def _hand_on(self, name: str, line: bytes) -> bool:
        """Send a finding to every output; true if it is new to a file, or without a file."""
        is_new = [stream.put(name, line) for stream in self.streams]
        if self.webhook is not None:
            self.webhook.put(name, line)
        return any(is_new) or not is_new


def _line(finding: Finding) -> str:
    return f"{finding.clause} {finding.topic}/{finding.queue} {finding.request}: {finding.why}"


@contextmanager
def open_reporter(
    places: Places, progress: Progress, thresholds: Mapping[str, float], say: Callable[[str], None]
) -> Iterator[FindingReporter]:
    """Report a history while the block runs; `say` gets lines for people.

    Raises `UserError` if an output cannot be opened, and `OSError` if a disk is full.
    """
    with ExitStack() as stack:
        try:
            teller = _opened(stack, places, progress, thresholds, say)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise
            text = f"cannot write {error.filename or 'the findings'}: {error.strerror}; name another place"
            raise ReportNotWrittenError(text) from None
        yield teller


def _opened(
    stack: ExitStack,
    places: Places,
    progress: Progress,
    thresholds: Mapping[str, float],
    say: Callable[[str], None],
) -> FindingReporter:
    url = None if places.webhook is None else checked_url(places.webhook)
    kept = None
    if places.checkpoint is not None:
        if places.checkpoint.exists() and not places.checkpoint.is_dir():
            raise CheckpointError(f"the checkpoint {places.checkpoint} is not a directory: name a directory")
        paths = [str(path) for path in progress.paths]
        kept = stack.enter_context(open_checkpoint(places.checkpoint, paths, thresholds))
    streams = [] if kept is None else [kept.told]
    if places.findings is not None:
        streams.append(stack.enter_context(open_stream(places.findings)))
    webhook = None if url is None else Webhook(url, kept.posted if kept else None, say)
    collector = FollowCollector(progress, webhook)
    if places.metrics_port is not None:
        where = stack.enter_context(told_at(places.metrics_port, collector))
        say(f"metrics at http://{where}/metrics")
    if webhook is not None:
        webhook.start()
        stack.callback(_end, webhook, say)
    teller = FindingReporter(streams, webhook, collector, say)
    if kept is not None:
        teller.remember(kept.told)
    return teller


def _end(webhook: Webhook, say: Callable[[str], None]) -> None:
    """End the webhook, and report the findings that it did not accept."""
    webhook.end(PATIENCE_S)
    if webhook.pending:
        later = "the next start with this checkpoint posts them" if webhook.posted else "they are not posted"
        say(f"{webhook.pending} findings were not taken by the webhook; {later}")


HOST = "127.0.0.1"


@define(eq=False)
class FollowCollector(Collector):
    """Reports on one history. The judging thread replaces `result` as a whole."""

    progress: Progress
    webhook: Webhook | None = None
    result: Result | None = None
    judgements: int = 0
    told: int = 0
    """Findings that this process reported."""

    def collect(self) -> Iterator[Metric]:
        """Every metric with its current value."""
        yield CounterMetricFamily("longpoll_judge_judgements", "Judgements that were made.", self.judgements)
        yield CounterMetricFamily("longpoll_judge_findings_told", "Findings reported since the start.", self.told)
        behind_s, behind_bytes = self.progress.behind(time.monotonic())
        text = "How long the oldest event that is not judged may have been there; 0 where all are judged."
        yield GaugeMetricFamily("longpoll_judge_behind_seconds", text, behind_s)
        yield GaugeMetricFamily("longpoll_judge_behind_bytes", "Bytes that are not judged.", behind_bytes)
        if self.webhook is not None:
            yield from _webhook(self.webhook)
        if self.result is not None:
            yield from _result(self.result)


def _webhook(webhook: Webhook) -> Iterator[Metric]:
    yield CounterMetricFamily("longpoll_judge_webhook_taken", "Findings that the webhook took.", webhook.taken)
    yield CounterMetricFamily("longpoll_judge_webhook_refused", "Findings that it refused.", webhook.refused)
    yield CounterMetricFamily("longpoll_judge_webhook_failures", "Attempts that came to nothing.", webhook.failures)
    dropped = "Findings that found no room among those that wait, which a checkpoint has posted at the next start."
    yield CounterMetricFamily("longpoll_judge_webhook_dropped", dropped, webhook.dropped)
    yield GaugeMetricFamily("longpoll_judge_webhook_pending", "Findings that it has still to take.", webhook.pending)


def _result(result: Result) -> Iterator[Metric]:
    so_far = standing(result)
    verdict = GaugeMetricFamily("longpoll_judge_verdict", "1 for the verdict so far.", labels=["verdict"])
    for name in STANDING_VERDICTS:
        verdict.add_metric([name], float(name == so_far.verdict))
    yield verdict
    yield GaugeMetricFamily("longpoll_judge_events", "Events that were judged.", result.events)
    yield GaugeMetricFamily("longpoll_judge_open_pulls", "Pulls that may still be answered.", so_far.open_pulls)
    yield GaugeMetricFamily("longpoll_judge_seconds", "How long the last judgement took.", result.seconds)
    left_out = "Findings beyond the listed ones; most of them were reported."
    yield GaugeMetricFamily("longpoll_judge_findings_left_out", left_out, result.findings_left_out)
    untold = "Findings that came with too many others to be reported one by one."
    yield GaugeMetricFamily("longpoll_judge_findings_not_told", untold, so_far.not_told)
    findings = GaugeMetricFamily("longpoll_judge_findings", "Findings so far.", labels=["clause", "verdict"])
    for (clause, kind), count in sorted(Counter((each.clause, each.verdict) for each in result.findings).items()):
        findings.add_metric([clause, kind], count)
    yield findings
    judged = GaugeMetricFamily("longpoll_judge_judged", "What each property was asked of.", labels=["property"])
    for name, count in sorted(result.judged.items()):
        judged.add_metric([name], count)
    yield judged
    gaps = GaugeMetricFamily("longpoll_judge_gaps", "Pieces of evidence that are missing.", labels=["clause"])
    for clause, count in sorted(Counter(gap["clause"] for gap in result.gaps).items()):
        gaps.add_metric([clause], count)
    yield gaps
    text = "What is told at the end only, and of how much."
    left = GaugeMetricFamily("longpoll_judge_left_to_the_end", text, labels=["what"])
    for what, count in sorted(what_is_left(result.gaps).items()):
        left.add_metric([what], count)
    yield left


def _leave(_request: object, _address: object) -> None:
    """Ignore a client that disconnects before the answer: output lines are for findings."""


@contextmanager
def told_at(port: int, collector: FollowCollector) -> Iterator[str]:
    """Serve the metrics, with this process's memory and processor time, on a port of 127.0.0.1; yields the address.

    Raises `ConfigError`.
    """
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    try:
        server, thread = start_http_server(port, HOST, registry)
    except OSError as error:
        raise ConfigError(f"cannot serve metrics at {HOST}:{port}: {error}; use another port, or 0") from None
    # The library makes the server, and accepts no class for it.
    vars(server)["handle_error"] = _leave
    try:
        yield f"{HOST}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


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
