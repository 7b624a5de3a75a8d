"""The rows of the broker: a load that checks every delivery, the property suite, the real client, and the stores.

One store was written by a Java broker, one by ours. `history` judges what the broker recorded.
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Callable, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final

import attrs

from longpoll.verification.limits import Declared
from longpoll.verification.real_client import RealClientReport, run_real_client, why_missing
from longpoll.verification.report import Outcome, Row, Stopwatch
from longpoll.wire.load import LoadPlan, LoadReport, drive
from longpoll.wire.suite.brokers import TestedBroker, expectations_of
from longpoll.wire.suite.machine import run_suite
from longpoll.wire.suite.model import Expectations
from longpoll_broker.config import BrokerConfig, StoreConfig
from longpoll_broker.store.verify import verify
from longpoll_client.errors import UnreachableError
from longpoll_runtime import Address, Runtime
from longpoll_runtime.files import RealFiles

JAVA_STORE: Final = "store-4.9.7-clean.tar.xz"
"""A store as a RocketMQ 4.9.7 broker left it after a clean stop; it ships with this package."""


def java_store_is_read() -> Sequence[Row]:
    """Unpack the Java broker's store and verify it."""
    with tempfile.TemporaryDirectory(prefix="longpoll-java-store-") as directory:
        with as_file(files("longpoll.verification") / JAVA_STORE) as archive, tarfile.open(archive) as packed:
            packed.extractall(directory, filter="data")
        roots = [path.parent for path in Path(directory).rglob("commitlog") if path.is_dir()]
        return [store_row("store written by RocketMQ 4.9.7", roots[0])]


def store_row(what: str, directory: Path) -> Row:
    """Verify a store directory: all records are intact, and log and queues agree."""
    watch = Stopwatch()
    verdict = verify(RealFiles(), str(directory))
    damage = [problem for problem in verdict.problems if problem.kind == "damage"]
    detail = f"{verdict.messages:,} messages in {len(verdict.queues)} queues"
    if damage:
        first = damage[0]
        detail += (
            f"; damaged in {len(damage)} places, the first: {first.file}, byte {first.offset}: found {first.found}"
        )
    return Row("store", what, "violated" if damage else "ok", detail, watch.lap())


Progress = Callable[[int, int], None]
SUITE_EXAMPLES: Final = 12
SUITE_STEPS: Final = 30
REAL_CLIENT_COUNT: Final = 2000
REAL_CLIENT_SINGLE_COUNT: Final = 50


def load(runtime: Runtime, address: Address, topic: str, progress: Progress) -> Sequence[Row]:
    """Producers and long-polling consumers: every message to every group that asked for it, once, in order."""
    watch = Stopwatch()
    report = drive(runtime, address, LoadPlan(topic), progress)
    outcome: Outcome = "violated" if report.problems else "unknown" if report.troubles else "ok"
    return [Row("broker", "load over real sockets", outcome, _of_load(report), watch.lap())]


def _of_load(report: LoadReport) -> str:
    detail = (
        f"{report.sent_count:,} messages sent, {report.delivered_count:,} delivered by {report.pull_count:,} pulls; "
        f"delivery p50 {report.percentile_ms(0.5):.2f} ms, p99 {report.percentile_ms(0.99):.2f} ms"
    )
    if report.problems:
        detail += f"; {len(report.problems)} problems, first: {report.problems[0]}"
    return detail + (f"; ended early: {report.troubles[0]}" if report.troubles else "")


def expectations(known: Declared, slack_ms: float) -> Expectations:
    """The requirements of the suite for an external broker that may take `slack_ms` for anything."""
    promised = expectations_of(known.policy, BrokerConfig(), StoreConfig())
    lost_ms = 0.0 if known.scan_ms else known.most.wake_ms
    return attrs.evolve(
        promised,
        patience_ms=round(promised.patience_ms + lost_ms + slack_ms),
        late_ms=round(promised.late_ms + slack_ms),
    )


def suite(runtime: Runtime, broker: TestedBroker, seed: int | None, progress: Progress) -> Sequence[Row]:
    """The property suite over the wire, next to a plain model; `seed` None for a new one each time."""
    watch = Stopwatch()
    outcome, detail = _of_suite(runtime, broker, seed, progress)
    return [Row("suite", "properties over the wire", outcome, detail, watch.lap())]


def _of_suite(runtime: Runtime, broker: TestedBroker, seed: int | None, progress: Progress) -> tuple[Outcome, str]:
    sizes = {"max_examples": SUITE_EXAMPLES, "step_count": SUITE_STEPS}
    try:
        report = run_suite(runtime, broker, **sizes, seed=seed, progress=progress, shrink=False)
    except UnreachableError as error:
        return "unknown", f"the broker disappeared: {error}"
    outcomes: dict[str, Outcome] = {"valid": "ok", "invalid": "violated", "unknown": "unknown"}
    counts = report.rule_counts
    detail = f"{sum(counts.values()):,} steps of {len(counts)} kinds in {report.examples} examples, seed {report.seed}"
    steps = "\n".join((f": {report.why}", *report.steps)) if report.why else ""
    return outcomes[report.verdict], detail + steps


def real_client(name_server: str, topic: str, progress: Progress) -> Sequence[Row]:
    """The real RocketMQ client in its own process: each message once, in order; single ones while held."""
    what = "real RocketMQ client (C++ core)"
    missing = why_missing()
    if missing is not None:
        return [Row("client", what, "skipped", missing)]
    watch = Stopwatch()
    report = run_real_client(
        name_server,
        topic=topic,
        group=topic,
        count=REAL_CLIENT_COUNT,
        single_count=REAL_CLIENT_SINGLE_COUNT,
        progress=lambda _what, done: progress(done, REAL_CLIENT_COUNT),
    )
    outcome: Outcome = "ok" if report.is_right else "violated" if report.is_wrong else "unknown"
    return [Row("client", what, outcome, _of_client(report), watch.lap())]


def _of_client(report: RealClientReport) -> str:
    wrong = {
        "missing": report.missing,
        "repeated": report.repeated,
        "stored twice": report.stored_twice,
        "with a wrong tag, key or property": report.wrong_labels,
        "out of order": report.out_of_order,
    }
    faults = ", ".join(f"{len(bodies)} {name}" for name, bodies in wrong.items() if bodies)
    return (
        f"{report.sent:,} sent, {faults or 'each received once, in queue order'}"
        f"{f' ({len(report.sent_again)} sent again by the client itself)' if report.sent_again else ''}; "
        f"{len(report.single_ms)} single ones to a held pull: median {report.single_ms_median:.2f} ms, "
        f"max {report.single_ms_max:.2f} ms"
    )
