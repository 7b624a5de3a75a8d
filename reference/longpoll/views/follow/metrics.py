"""The Prometheus metrics of a followed history: the verdict so far, findings by clause, and the lag.

All but the lag are from the last judgement.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from attrs import define
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from longpoll.views.follow.webhook import Webhook
from longpoll_judge.contract.result import Result
from longpoll_judge.run.follow import Progress
from longpoll_judge.run.tally import what_is_left
from longpoll_judge.show.standing import STANDING_VERDICTS, standing
from longpoll_spec.errors import ConfigError

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
