"""The stages of `longpoll verify`: specification, stores, load, conversations, race, and the judged history.

Each stage returns rows of the page (`longpoll.verification.report`). Load and race are those of `longpoll conform`.
"""

from __future__ import annotations

import secrets
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
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
from longpoll.verification.report import Outcome, Page, Row
from longpoll.wire.load import LoadPlan, drive
from longpoll_broker.store.verify import verify as verify_store
from longpoll_conform.capabilities import VERSIONS
from longpoll_conform.connection import SilentError
from longpoll_conform.play import Place
from longpoll_conform.suite import OUTCOMES, Suite, by_clause
from longpoll_conform.suite import Result as Clause
from longpoll_conform.vectors import recorded
from longpoll_judge.contract.result import Result
from longpoll_judge.run.pipeline import judge
from longpoll_observe.observer import Observer, name_of
from longpoll_runtime import Address, Runtime
from longpoll_runtime.files import RealFiles

NAME_SERVER_PORT: Final = 9876
JAVA_STORE: Final = "store-4.9.7-clean.tar.xz"
"""A store as a RocketMQ 4.9.7 broker left it after a clean stop; it ships with this package."""
VERDICTS: Final[dict[str, Outcome]] = {"valid": "ok", "invalid": "violated", "unknown": "unknown"}
Progress = Callable[[int, int], None]


@frozen
class Job:
    """The options of one call."""

    known: Declared
    policy_name: str
    knobs: Sequence[str]
    broker: Address | None
    """The address of the broker; None to start our own broker."""
    name_server: Address | None
    race_s: float
    """Seconds of the race between messages and waiting pulls; 0 to skip it."""
    history: Path
    scratch: Path
    """The directory of temporary files."""
    runtime: Runtime


def run_all(page: Page, job: Job) -> None:
    """Run all stages; Ctrl-C ends them early and adds a row."""

    def work() -> None:
        _law(page)
        (_own_broker if job.broker is None else _named_broker)(page, job)

    ended = exit_codes.attempted(work)
    if isinstance(ended, exit_codes.Raised):
        if not isinstance(ended.error, KeyboardInterrupt):
            raise ended.error
        page.add([Row("verify", "the whole of it", "unknown", exit_codes.STOPPED)])


def _law(page: Page) -> None:
    page.stage("specification: exploring", specification.engines_agree, part="law")
    page.stage("specification: our own policies", specification.ours_holds, part="law")
    page.stage("specification: RocketMQ 4.9's races", specification.races_are_found, part="law")
    page.stage("specification: proving", specification.ours_is_proved, part="proof")
    page.stage("reading a store of the Java broker", java_store_is_read, part="store")


def _own_broker(page: Page, job: Job) -> None:
    runtime, store_directory = job.runtime, job.scratch / "store"
    asked = [f"--policy={job.policy_name}", *(f"--knob={knob}" for knob in job.knobs)]
    with ServedBroker(store_directory, job.history, *asked) as served:
        with HostLatency(runtime, served.address, "longpoll-verify") as echo:
            _stage(page, "broker", "broker: load", partial(load, runtime, served.address, "longpoll-verify"))
        page.stage("broker: stop", lambda: [stop_row(served.stop())], part="broker")
    with ServedBroker(job.scratch / "unrecorded", None, *asked) as other:
        names = address_of(other.name_server)
        _stage(page, "clauses", "recorded conversations", partial(conversations, job, other.address, names))
        _races(page, job, other.address, "longpoll-verify-races", name="the broker", process_id=other.process_id)
    what = "store that our broker has left"
    page.stage("verifying the broker's store", lambda: [store_row(what, store_directory)], part="store")
    _judge(page, job, limits_of(echo.worst_ms))


def stop_row(code: int) -> Row:
    """Return the row about how the broker exited when it was stopped."""
    return Row("broker", "stops on SIGTERM", "violated" if code else "ok", f"exit code {code}")


def _named_broker(page: Page, job: Job) -> None:
    assert job.broker is not None, "use _own_broker"
    runtime, place = job.runtime, job.broker
    name, topic = name_of(place), f"longpoll-verify-{runtime.unix_ms()}"
    observing = Observer.start(
        runtime, brokers=[place], record_directory=str(job.history), policy=job.known.policy.name
    )
    with observing as observer, HostLatency(runtime, place, topic) as echo:
        loading = partial(load, runtime, observer.doors[name], topic)
        _stage(page, "broker", f"load against {name} through the proxy", loading)
    names = job.name_server or (place[0], NAME_SERVER_PORT)
    _stage(page, "clauses", f"recorded conversations with {name}", partial(conversations, job, place, names))
    _races(page, job, place, f"{topic}-races", name=name)
    _judge(page, job, limits_of(echo.worst_ms))


def _races(page: Page, job: Job, place: Address, topic: str, *, name: str, process_id: int | None = None) -> None:
    """Run the race alone and without a proxy, because then messages and pulls coincide most often."""
    if not job.race_s:
        page.add([Row("races", races.WHAT, "skipped", "--race-seconds 0")])
        return

    def work(tell: Progress) -> Sequence[Row]:
        runtime, seconds = job.runtime, job.race_s
        told = races.races(runtime, place, topic, seconds, tell, known=job.known, process_id=process_id)
        return [Row("races", races.WHAT, told.outcome, told.detail)]

    _stage(page, "races", f"race of messages and pulls at {name}", work)


def _judge(page: Page, job: Job, limits: Limits) -> None:
    def work() -> Sequence[Row]:
        page.result, rows = judged(job.history, job.known, limits, partial(err.print, style="dim"))
        return rows

    page.stage("history: judging on Spark", work, part="history")


def _stage(page: Page, part: str, title: str, work: Callable[[Progress], Sequence[Row]]) -> None:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())

    def shown() -> Sequence[Row]:
        with progress_bar(*columns) as bar:
            task = bar.add_task(title, total=None)
            return work(lambda done, total: bar.update(task, completed=done, total=total))

    page.stage(title, shown, part=part)


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
    verdict = verify_store(RealFiles(), str(directory))
    damage = [problem for problem in verdict.problems if problem.kind == "damage"]
    detail = f"{verdict.messages:,} messages in {len(verdict.queues)} queues"
    if damage:
        first = f"{damage[0].file}, byte {damage[0].offset}: found {damage[0].found}"
        detail += f"; damaged in {len(damage)} places, the first: {first}"
    return Row("store", what, "violated" if damage else "ok", detail)


def load(runtime: Runtime, address: Address, topic: str, progress: Progress) -> Sequence[Row]:
    """Run a load, and check that each group got each message that it requested once and in order."""
    report = drive(runtime, address, LoadPlan(topic), progress)
    detail = (
        f"{report.sent_count:,} messages sent, {report.delivered_count:,} delivered by {report.pull_count:,} pulls; "
        f"delivery p50 {report.percentile_ms(0.5):.2f} ms, p99 {report.percentile_ms(0.99):.2f} ms"
    )
    if report.problems:
        detail += f"; {len(report.problems)} problems, first: {report.problems[0]}"
    if report.troubles:
        detail += f"; ended early: {report.troubles[0]}"
    outcome: Outcome = "violated" if report.problems else "unknown" if report.troubles else "ok"
    return [Row("broker", "load over real sockets", outcome, detail)]


def conversations(job: Job, broker: Address, name_server: Address, progress: Progress) -> Sequence[Row]:
    """Play every recorded conversation of the policy's version, as `longpoll conform` does."""
    what = "recorded conversations"
    if job.policy_name not in VERSIONS:
        why = f"there are no recordings of a broker with the policy {job.policy_name}"
        return [Row("clauses", what, "skipped", why)]
    version = VERSIONS[job.policy_name]
    scans = job.known.policy.expiry == "scan"
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
        return [Row("clauses", what, "unknown", str(error))]
    outcome, detail = _of_clauses(results, suite.silenced_by)
    return [Row("clauses", f"{what} of {version}", outcome, detail)]


def _of_clauses(results: Sequence[Clause], silenced_by: Sequence[str]) -> tuple[Outcome, str]:
    """Return the outcome of the conversations for a row, and a sentence that counts the clauses by outcome."""
    clauses = by_clause(results)
    counts = Counter(clauses.values())
    detail = f"{len(clauses)} clauses: {', '.join(f'{counts[each]} {each}' for each in OUTCOMES if counts[each])}"
    if silenced_by:
        detail += f"; it stopped responding after {silenced_by[0]}"
    first = next((result for result in results if result.outcome == "FAIL"), None)
    if first is not None:
        detail += f"; first {first.clause.id} ({first.vector.id}): {first.why}; see `longpoll conform` for details"
        return "violated", detail
    return "ok" if counts["PASS"] and not silenced_by else "unknown", detail


# -- the history -----------------------------------------------------------------------------------------------------


def judged(history: Path, known: Declared, limits: Limits, say: Callable[[str], None]) -> tuple[Result, Sequence[Row]]:
    """Judge the recorded run on Spark, by the promises of the broker's declared policy."""
    found = judge([history], engine="spark", wake_ms=limits.wake_ms, late_ms=limits.late_ms, say=say)
    result, excused = by_promises(found, history, known, limits)
    outcome = VERDICTS[result.verdict]
    if outcome == "ok" and not result.requests:
        outcome = "unknown"  # No clause was judged.
    detail = _detail(result)
    if outcome == "ok" and limits.are_coarse and not set(TIMELY) <= known.broken.keys():
        outcome = "unknown"
        detail += "; the host was too slow to measure promptness; run it again on an idle host"
    rows = [Row("history", "recorded run, judged on Spark", outcome, detail)]
    if excused:
        counted = ", ".join(f"{known.name_of(name)} {count} times" for name, count in excused)
        detail = f"{counted}, as the policy declares: within {most_of(known, limits)}"
        rows.append(Row("history", f"not promised by {known.policy.name}", "ok", detail))
    return result, rows


def _detail(result: Result) -> str:
    wake, late = result.latency["wake_ms"], result.latency["late_ms"]
    limits = ", ".join(f"{name.removesuffix('_ms')} {value:g} ms" for name, value in result.thresholds.items())
    detail = (
        f"{result.events:,} events, {result.requests:,} pulls: {result.verdict}; "
        f"wake p50 {_ms(wake.p50)}, p99 {_ms(wake.p99)}, late p99 {_ms(late.p99)} (limits {limits})"
    )
    if not result.findings:
        return detail + (f"; {result.gaps[0]['why']}" if result.gaps else "")
    first = result.findings[0]
    told = [one for finding in result.findings for one in finding.told() if one.verdict == "violated"]
    others = dict.fromkeys(one.property for one in told if one.property != first.property)
    detail += f"; {first.property} {first.verdict}: {first.why}"
    return detail + (f"; also violated: {', '.join(others)}" if others else "")


def _ms(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f} ms"
