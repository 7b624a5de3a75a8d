"""The stages of `longpoll verify`: specification, stores, load, conversations, race, and the judged history.

Each stage returns rows of the page (`longpoll.verification.report`). Load and race are those of `longpoll conform`.
"""

from __future__ import annotations

import secrets
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final

from attrs import frozen
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from longpoll import exit_codes
from longpoll.options.values import address_of
from longpoll.output import err, progress_bar
from longpoll.verification import races, specification
from longpoll.verification.broker_process import HostLatency, ServedBroker
from longpoll.verification.limits import TIMELY, Declared, Limits, by_promises, limits_of, most_of
from longpoll.verification.report import Outcome, Page, Row, Stopwatch
from longpoll.wire.load import LoadPlan, LoadReport, drive
from longpoll_broker.store.verify import verify as verify_store
from longpoll_conform.capabilities import VERSIONS
from longpoll_conform.connection import SilentError
from longpoll_conform.play import Place
from longpoll_conform.suite import OUTCOMES, Suite, by_clause
from longpoll_conform.suite import Result as Clause
from longpoll_conform.vectors import recorded
from longpoll_judge.contract.result import Result
from longpoll_judge.faults import ALLOWANCE_MS, WAKE_DELAY_MS, plant
from longpoll_judge.run.pipeline import judge
from longpoll_observe.observer import Observer, name_of
from longpoll_runtime import Address, Runtime
from longpoll_runtime.files import RealFiles
from longpoll_spec.policy import Policy

NAME_SERVER_PORT: Final = 9876
JAVA_STORE: Final = "store-4.9.7-clean.tar.xz"
"""A store as a RocketMQ 4.9.7 broker left it after a clean stop; it ships with this package."""
FAULTS: Final = "planted faults are found"
PLANTED: Final = ("answer_deleted", "answer_delayed", "wake_delayed", "answer_duplicated", "next_wrong")
VERDICTS: Final[dict[str, Outcome]] = {"valid": "ok", "invalid": "violated", "unknown": "unknown"}
Progress = Callable[[int, int], None]


@frozen
class Job:
    """The options of one call."""

    known: Declared
    policy_name: str
    knobs: Sequence[str]
    broker: Address | None
    """None for our own broker."""
    name_server: Address | None
    wake_ms: float | None
    """None for the judge's own limit plus the time of the broker's echoes."""
    late_ms: float | None
    race_s: float
    """Seconds of the race between messages and waiting pulls; 0 to skip it."""
    history: Path
    scratch: Path
    """The directory of temporary files."""
    runtime: Runtime

    @property
    def policy(self) -> Policy:
        """The expected policy of the broker."""
        return self.known.policy

    def limits(self, echo: HostLatency) -> Limits:
        """The limits for late answers."""
        return limits_of(echo.worst_ms, wake_ms=self.wake_ms, late_ms=self.late_ms)


def run_all(page: Page, job: Job) -> Result | None:
    """Run all stages; Ctrl-C ends them early and adds a row."""
    results: list[Result] = []

    def work() -> None:
        _law(page)
        (_own_broker if job.broker is None else _named_broker)(page, job, results)

    ended = exit_codes.attempted(work)
    if isinstance(ended, exit_codes.Raised):
        if not isinstance(ended.error, KeyboardInterrupt):
            raise ended.error
        page.add([Row("verify", "the whole of it", "unknown", exit_codes.STOPPED)])
    return results[0] if results else None


def _law(page: Page) -> None:
    page.stage("specification: exploring", specification.engines_agree, part="law")
    page.stage("specification: our own policies", specification.ours_holds, part="law")
    page.stage("specification: RocketMQ 4.9's races", specification.races_are_found, part="law")
    page.stage("specification: proving", specification.ours_is_proved, part="proof")
    page.stage("reading a store of the Java broker", java_store_is_read, part="store")


def _own_broker(page: Page, job: Job, results: list[Result]) -> None:
    runtime, store_directory = job.runtime, job.scratch / "store"
    asked = [f"--policy={job.policy_name}", *(f"--knob={knob}" for knob in job.knobs)]
    with ServedBroker(store_directory, job.history, *asked) as served:
        with HostLatency(runtime, served.address, "longpoll-verify") as echo:
            _stage(page, "broker", "broker: load", partial(load, runtime, served.address, "longpoll-verify"))
        page.stage("broker: stop", lambda: [_stopped(served)], part="broker")
    with ServedBroker(job.scratch / "unrecorded", None, *asked) as other:
        names = address_of(other.name_server)
        _stage(page, "clauses", "recorded conversations", partial(conversations, job, other.address, names))
        _races(page, job, other.address, "longpoll-verify-races", name="the broker", process_id=other.process_id)
    left = partial(store_row, "store that our broker has left", store_directory)
    page.stage("verifying the broker's store", lambda: [left()], part="store")
    limits = job.limits(echo)
    _judge(page, job, limits, results)
    planted = partial(faults_are_found, job.history, limits, job.scratch)
    page.stage("history: injected faults", planted, part="history")


def _stopped(served: ServedBroker) -> Row:
    code = served.stop()
    return Row("broker", "stops on SIGTERM", "violated" if code else "ok", f"exit code {code}")


def _named_broker(page: Page, job: Job, results: list[Result]) -> None:
    assert job.broker is not None, "use _own_broker"
    runtime, place = job.runtime, job.broker
    name, topic = name_of(place), f"longpoll-verify-{runtime.unix_ms()}"
    observing = Observer.start(runtime, brokers=[place], record_directory=str(job.history), policy=job.policy.name)
    with observing as observer, HostLatency(runtime, place, topic) as echo:
        loading = partial(load, runtime, observer.doors[name], topic)
        _stage(page, "broker", f"load against {name} through the proxy", loading)
    names = job.name_server or (place[0], NAME_SERVER_PORT)
    _stage(page, "clauses", f"recorded conversations with {name}", partial(conversations, job, place, names))
    _races(page, job, place, f"{topic}-races", name=name)
    _judge(page, job, job.limits(echo), results)


def _races(page: Page, job: Job, place: Address, topic: str, *, name: str, process_id: int | None = None) -> None:
    """Run the race alone and without a proxy, so that it happens as often as possible."""
    if not job.race_s:
        page.add([Row("races", races.WHAT, "skipped", "--race-seconds 0")])
        return

    def work(tell: Progress) -> Sequence[Row]:
        watch = Stopwatch()
        with HostLatency(job.runtime, place, topic) as echo:
            told = races.races(
                job.runtime, place, topic, job.race_s, tell,
                known=job.known, limits=lambda: job.limits(echo), process_id=process_id,
            )  # fmt: skip
        return [Row("races", races.WHAT, told.outcome, told.detail, watch.lap())]

    _stage(page, "races", f"race of messages and pulls at {name}", work)


def _judge(page: Page, job: Job, limits: Limits, results: list[Result]) -> None:
    def work() -> Sequence[Row]:
        result, rows = judged(job.history, job.known, limits, partial(err.print, style="dim"))
        results.append(result)
        return rows

    page.stage("history: judging on Spark", work, part="history")


def _stage(page: Page, part: str, title: str, work: Callable[[Progress], Sequence[Row]]) -> None:
    """Run a stage with a progress bar on stderr."""

    def shown() -> Sequence[Row]:
        with _bar(title) as tell:
            return work(tell)

    page.stage(title, shown, part=part)


@contextmanager
def _bar(title: str) -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with progress_bar(*columns) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


# -- the broker ------------------------------------------------------------------------------------------------------


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
    verdict = verify_store(RealFiles(), str(directory))
    damage = [problem for problem in verdict.problems if problem.kind == "damage"]
    detail = f"{verdict.messages:,} messages in {len(verdict.queues)} queues"
    if damage:
        first = damage[0]
        detail += (
            f"; damaged in {len(damage)} places, the first: {first.file}, byte {first.offset}: found {first.found}"
        )
    return Row("store", what, "violated" if damage else "ok", detail, watch.lap())


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


def conversations(job: Job, broker: Address, name_server: Address, progress: Progress) -> Sequence[Row]:
    """Play every recorded conversation of the policy's version, as `longpoll conform` does."""
    what = "recorded conversations"
    if job.policy_name not in VERSIONS:
        return [
            Row("clauses", what, "skipped", f"there are no recordings of a broker with the policy {job.policy_name}")
        ]
    watch, version = Stopwatch(), VERSIONS[job.policy_name]
    scans = job.policy.expiry == "scan"
    suite = Suite(Place(broker, name_server), job.policy_name, secrets.token_hex(4), scans, makes_smaller=False)
    vectors, played = recorded(version), Counter[str]()

    def told(result: Clause) -> None:
        played[result.outcome] += 1
        progress(played.total(), len(vectors))

    suite.told = told
    try:
        suite.find()
        results = suite.run(vectors)
    except SilentError as error:
        return [Row("clauses", what, "unknown", str(error), watch.lap())]
    outcome, detail = _of_clauses(results, suite.silenced_by)
    return [Row("clauses", f"{what} of {version}", outcome, detail, watch.lap())]


def _of_clauses(results: Sequence[Clause], silenced_by: Sequence[str]) -> tuple[Outcome, str]:
    """The outcome and the sentence for a run's results."""
    clauses = by_clause(results)
    counts = Counter(clauses.values())
    detail = f"{len(clauses)} clauses: {', '.join(f'{counts[each]} {each}' for each in OUTCOMES if counts[each])}"
    if silenced_by:
        detail += f"; it stopped responding after {silenced_by[0]}"
    failed = [result for result in results if result.outcome == "FAIL"]
    if failed:
        first = failed[0]
        detail += f"; first {first.clause.id} ({first.vector.id}): {first.why}; see `longpoll conform` for details"
        return "violated", detail
    return "ok" if counts["PASS"] and not silenced_by else "unknown", detail


# -- the history -----------------------------------------------------------------------------------------------------


def judged(history: Path, known: Declared, limits: Limits, say: Callable[[str], None]) -> tuple[Result, Sequence[Row]]:
    """Judge the recorded run on Spark, by the promises of the broker's declared policy."""
    watch = Stopwatch()
    found = judge([history], engine="spark", wake_ms=limits.wake_ms, late_ms=limits.late_ms, say=say)
    result, excused = by_promises(found, history, known, limits)
    outcome = VERDICTS[result.verdict]
    if outcome == "ok" and not result.requests:
        outcome = "unknown"  # nothing was judged
    detail = _detail(result)
    if outcome == "ok" and limits.are_coarse and not set(TIMELY) <= known.broken.keys():
        outcome = "unknown"
        detail += "; the host was too slow to measure promptness; set --wake-ms and --late-ms"
    rows = [Row("history", "recorded run, judged on Spark", outcome, detail, watch.lap())]
    if excused:
        what = f"not promised by {known.policy.name}"
        counted = ", ".join(f"{known.name_of(name)} {count} times" for name, count in excused)
        detail = f"{counted}, as the policy declares: within {most_of(known, limits)}"
        rows.append(Row("history", what, "ok", detail))
    return result, rows


def _detail(result: Result) -> str:
    wake, late = result.latency["wake_ms"], result.latency["late_ms"]
    detail = (
        f"{result.events:,} events, {result.requests:,} pulls: {result.verdict}; "
        f"wake p50 {_ms(wake.p50)}, p99 {_ms(wake.p99)}, late p99 {_ms(late.p99)} "
        f"(limits {_limits(result)})"
    )
    if result.findings:
        first = result.findings[0]
        detail += f"; {first.property} {first.verdict}: {first.why}{_others(result)}"
    elif result.gaps:
        detail += f"; {result.gaps[0]['why']}"
    return detail


def _others(result: Result) -> str:
    """The violated properties, except that of the first finding."""
    others: dict[str, None] = {}
    for finding in result.findings:
        others |= dict.fromkeys([finding.property] if finding.verdict == "violated" else [])
        others |= dict.fromkeys(each.property for each in finding.follows if each.verdict == "violated")
    others.pop(result.findings[0].property, None)
    return f"; also violated: {', '.join(others)}" if others else ""


def _ms(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f} ms"


def _limits(result: Result) -> str:
    return ", ".join(f"{name.removesuffix('_ms')} {value:g} ms" for name, value in result.thresholds.items())


def faults_are_found(history: Path, limits: Limits, scratch: Path) -> Sequence[Row]:
    """Inject each fault into a copy of the run; the judge must report it. Uses the local engine, which is faster.

    The limits are at most half of the faults' delay, because wider ones would hide them.
    """
    watch = Stopwatch()
    limits = Limits(min(limits.wake_ms, WAKE_DELAY_MS / 2), min(limits.late_ms, ALLOWANCE_MS / 2))

    def judge_locally(directory: Path) -> Result:
        return judge([directory], engine="local", wake_ms=limits.wake_ms, late_ms=limits.late_ms)

    clean = judge_locally(history)
    if clean.verdict != "valid":
        why = f"the recorded run is {clean.verdict} with {limits}, so injected faults would show nothing"
        return [Row("history", FAULTS, "skipped", why, watch.lap())]
    missed = []
    for name in PLANTED:
        directory = scratch / name
        fault = plant(history, name, directory)
        result = judge_locally(directory)
        found = {one.property for finding in result.findings for one in finding.told()}
        if result.verdict != fault.verdict or not found or not found <= fault.properties:
            missed.append(f"{name} ({result.verdict}, {', '.join(sorted(found)) or 'no finding'})")
    detail = f"missed: {'; '.join(missed)}" if missed else f"{len(PLANTED)} of {len(PLANTED)}: {', '.join(PLANTED)}"
    return [Row("history", FAULTS, "violated" if missed else "ok", detail, watch.lap())]
