"""Reports a followed history: each certain finding once, and the verdict so far after each judgement.

If too many findings come at once, one line with its own name gives the number of the others as `not_told`.

A finding goes to the checkpoint first, then to the file of findings, then to the webhook, then to stderr.
If the process ends in between, the next start completes the other outputs from the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec
from attrs import define, field, frozen

from longpoll.exit_codes import NO_ROOM
from longpoll.views.follow.metrics import FollowCollector, told_at
from longpoll.views.follow.webhook import Webhook, checked_url
from longpoll_judge.contract.result import Finding, Result
from longpoll_judge.errors import CheckpointError, ReportNotWrittenError
from longpoll_judge.run.follow import Progress
from longpoll_judge.run.incremental.listed_findings import NOT_TOLD, what_is_left
from longpoll_judge.show.findings_file import Names, Stream, open_checkpoint, open_stream
from longpoll_judge.show.standing import standing

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
        """Send a finding to every output; true if it is new to a file, or there is no file."""
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
