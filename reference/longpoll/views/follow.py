"""Reports a followed history: each certain finding once, to a file and stderr, and the verdict so far as metrics.

If too many findings come at once, one line with a separate name gives the number of unreported findings as `not_told`.
A finding is written to the file first, then to stderr. After a restart, the file shows which findings were reported.
All metrics except the lag are those of the last judgement.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
from attrs import define, field, frozen
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from longpoll.exit_codes import NO_ROOM
from longpoll_judge.contract.result import Finding, Result
from longpoll_judge.errors import ReportNotWrittenError
from longpoll_judge.run.follow import Progress
from longpoll_judge.run.tally import NOT_TOLD, what_is_left
from longpoll_judge.show.findings_file import Stream, open_stream
from longpoll_judge.show.standing import STANDING_VERDICTS, standing
from longpoll_spec.errors import ConfigError


@frozen
class Places:
    """The outputs that the command's options name."""

    findings: Path | None = None
    metrics_port: int | None = None

    @property
    def are_any(self) -> bool:
        """Whether any output is named."""
        return self != Places()


@define(eq=False)
class FindingReporter:
    """Reports each finding once: to people through `say`, and to the file of findings."""

    stream: Stream | None
    collector: FollowCollector
    say: Callable[[str], None]
    _heard: set[str] = field(factory=set)
    _left: set[str] = field(factory=set)
    """The names of the checks for which a line has announced that they are reported only at the end."""

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
        """Report the number of findings that were not reported one by one, unless this number was reported already."""
        name, why = f"not-told-{count}", f"{count} {NOT_TOLD}"
        if name not in self._heard:
            self._heard.add(name)
            if self._hand_on(name, msgspec.json.encode({"id": name, "not_told": count, "why": why})):
                self.say(why)

    def tell_last(self, result: Result) -> None:
        """Report the last judgement, unless the judgement was reported already."""
        if result is not self.collector.result:
            self.tell(result)

    def _hand_on(self, name: str, line: bytes) -> bool:
        """Add a finding to the file; returns true if the file did not have the finding yet, or if there is no file."""
        return self.stream is None or self.stream.put(name, line)


def _line(finding: Finding) -> str:
    return f"{finding.clause} {finding.topic}/{finding.queue} {finding.request}: {finding.why}"


@contextmanager
def open_reporter(places: Places, progress: Progress, say: Callable[[str], None]) -> Iterator[FindingReporter]:
    """Report a history while the block runs; `say` gets lines for people.

    Raises `UserError` if an output cannot be opened, and `OSError` if a disk is full.
    """
    with ExitStack() as stack:
        try:
            teller = _opened(stack, places, progress, say)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise
            text = f"cannot write {error.filename or 'the findings'}: {error.strerror}; name another place"
            raise ReportNotWrittenError(text) from None
        yield teller


def _opened(stack: ExitStack, places: Places, progress: Progress, say: Callable[[str], None]) -> FindingReporter:
    stream = None if places.findings is None else stack.enter_context(open_stream(places.findings))
    collector = FollowCollector(progress)
    if places.metrics_port is not None:
        where = stack.enter_context(told_at(places.metrics_port, collector))
        say(f"metrics at http://{where}/metrics")
    return FindingReporter(stream, collector, say)


HOST = "127.0.0.1"


@define(eq=False)
class FollowCollector(Collector):
    """Provides the metrics of one followed history. The judging thread replaces `result` as a whole."""

    progress: Progress
    result: Result | None = None
    judgements: int = 0
    told: int = 0
    """The number of findings that this process has reported."""

    def collect(self) -> Iterator[Metric]:
        """Every metric with its current value."""
        yield CounterMetricFamily("longpoll_judge_judgements", "Judgements that were made.", self.judgements)
        yield CounterMetricFamily("longpoll_judge_findings_told", "Findings reported since the start.", self.told)
        behind_s, behind_bytes = self.progress.behind(time.monotonic())
        text = "How long the oldest event that is not judged may have been there; 0 where all are judged."
        yield GaugeMetricFamily("longpoll_judge_behind_seconds", text, behind_s)
        yield GaugeMetricFamily("longpoll_judge_behind_bytes", "Bytes that are not judged.", behind_bytes)
        if self.result is not None:
            yield from _result(self.result)


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
    """Ignore a client that disconnects before its answer, because output lines are for findings."""


@contextmanager
def told_at(port: int, collector: FollowCollector) -> Iterator[str]:
    """Serve the metrics, with this process's memory and processor time, on a port of 127.0.0.1; yields the address.

    Raises `ConfigError` if the port cannot be used.
    """
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    try:
        server, thread = start_http_server(port, HOST, registry)
    except OSError as error:
        raise ConfigError(f"cannot serve metrics at {HOST}:{port}: {error}; use another port, or 0") from None
    # The library creates the server and does not accept a class for it, so its method is replaced.
    vars(server)["handle_error"] = _leave
    try:
        yield f"{HOST}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
