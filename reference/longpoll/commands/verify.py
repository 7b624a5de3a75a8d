"""`longpoll verify`: the main job, end to end, on our broker or on a named one.

Leaves out every stage's work: `longpoll.verification` has a module for each.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import click
from attrs import frozen
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from longpoll import guard
from longpoll.addresses import address_of
from longpoll.options.amounts import Amount
from longpoll.options.law import knob_option, policy_option
from longpoll.output import check_directory, emit_json, err, json_option, progress_bar, user_mistakes
from longpoll.verification import broker, history, html, law, races, store
from longpoll.verification.conversations import conversations
from longpoll.verification.declared import ECHOES, Declared, Limits, declared, limits_of
from longpoll.verification.echo import Echo
from longpoll.verification.page import Page, Row, Stopwatch
from longpoll.verification.served import ServedBroker
from longpoll_broker.testing.served.subject import EmbeddedSubject, RemoteSubject
from longpoll_judge.contract.result import Result
from longpoll_observe.observer import Observer, name_of
from longpoll_runtime import Address, Runtime
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError
from longpoll_spec.policy import Policy, preset, with_knobs

REPORT: Final = "longpoll-report"
CONNECT_S: Final = 10.0


@frozen
class Job:
    """What was asked for."""

    known: Declared
    policy_name: str
    knobs: Sequence[str]
    broker: Address | None
    """None: our own."""
    name_server: Address | None
    wake_ms: float | None
    """None: the judge's own limit, and what the broker's echoes took besides."""
    late_ms: float | None
    seed: int | None
    race_s: float
    """How long messages race the pulls that wait for them; 0: not at all."""
    recorded: Path
    """Where the history goes, and stays."""
    scratch: Path
    """For what need not stay."""
    runtime: Runtime

    @property
    def policy(self) -> Policy:
        """What is expected of the broker."""
        return self.known.policy

    def limits(self, echo: Echo) -> Limits:
        """How late an answer may be."""
        return limits_of(echo.worst_ms, wake_ms=self.wake_ms, late_ms=self.late_ms)


@click.command()
@click.option("--broker", "broker_address", metavar="HOST:PORT", help="Run the suite against this broker instead.")
@click.option("--name-server", metavar="HOST:PORT", help="That broker's name server, for the real client.")
@policy_option("What is expected of the broker.")
@knob_option("Set one knob of the policy; repeatable.")
@click.option("--wake-ms", type=Amount(), help="How late a wake may be; none: measured by the broker's echoes.")
@click.option(
    "--late-ms",
    type=Amount(),
    help="How long after its deadline a pull may be answered; none: measured as well.",
)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Of the property suite's choices; none: another.")
@click.option(
    "--race-seconds",
    "race_s",
    type=Amount(),
    default=races.RACE_S,
    show_default=True,
    help="How long messages race the pulls that wait for them; 0: not at all.",
)
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    help="Write the history into this new directory; none: into one of the report's.",
)
@click.option(
    "--report",
    "report_directory",
    default=REPORT,
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Where index.html goes.",
)
@json_option
@user_mistakes
def verify(
    *,
    broker_address: str | None,
    name_server: str | None,
    policy_name: str,
    knobs: Sequence[str],
    wake_ms: float | None,
    late_ms: float | None,
    seed: int | None,
    race_s: float,
    record: Path | None,
    report_directory: Path,
    as_json: bool,
) -> None:
    """Explore and prove the law, run the property suite against a broker, judge the history it left, print one page.

    Without --broker the reference broker is started in a process of its own, on a temporary store, recording.
    A named broker is put behind a recording proxy, and what it did under the load is judged; and it is asked every
    recorded conversation of its policy's version, as `longpoll conform` does, which shows the bytes as well.

    --policy and --knob say what is expected of it. What they do not promise by the law is told, and violates nothing:
    RocketMQ's own brokers are late by their scan, and lose wakes until it, which is counted. Whatever the broker does,
    the page is printed whole: a stage that cannot be done is a row with what stood in its way.

    \b
    Examples:
      longpoll verify
      longpoll verify --json
      longpoll verify --broker 127.0.0.1:10911 --name-server 127.0.0.1:9876 --policy rocketmq-4.9
      longpoll verify --broker 127.0.0.1:10911 --policy rocketmq-5 --knob expiry=own_deadline --late-ms 200 --seed 7
      longpoll verify --broker 127.0.0.1:10911 --policy rocketmq-5 --race-seconds 60

    Exit codes: 0 all as it should be, 1 violated or invalid, 2 a mistake in the call, 3 unknown.
    """
    policy = with_knobs(preset(policy_name), knobs)
    if name_server is not None and broker_address is None:
        raise ConfigError("--name-server goes with --broker: name the broker as well")
    runtime = RealRuntime()
    place = None if broker_address is None else address_of(broker_address)
    names = None if name_server is None else address_of(name_server)
    html.check(report_directory)
    recorded = _history_directory(record, report_directory, runtime)
    _check_answers(runtime, "--broker", place)
    _check_answers(runtime, "--name-server", names)
    page = Page()
    with tempfile.TemporaryDirectory(prefix="longpoll-verify-") as scratch:
        known = declared(policy)
        job = Job(
            known, policy_name, knobs, place, names, wake_ms, late_ms, seed, race_s, recorded, Path(scratch), runtime
        )
        result = _all_stages(page, job)
    path = html.write(report_directory, html.render(page.rows, law.charts(page.rows), result))
    if as_json:
        rows = [row.as_json() for row in page.rows]
        told = {"exit_code": int(page.exit_code), "rows": rows, "report": str(path), "history": str(recorded)}
        emit_json(told)
    else:
        page.print()
        err.print(f"report: {path}", soft_wrap=True)
        err.print(f"history: {recorded}", soft_wrap=True)
    sys.exit(page.exit_code)


def _history_directory(given: Path | None, report_directory: Path, runtime: Runtime) -> Path:
    """Where the history goes; one that was named must be new or empty, for two histories are not one."""
    directory = given or report_directory / f"history-{runtime.unix_ms()}"
    if directory.is_dir() and any(directory.iterdir()):
        raise ConfigError(f"{directory} is not empty: name a new directory for the history")
    check_directory(directory, "the history into")
    return directory.absolute()


def _check_answers(runtime: Runtime, what: str, place: Address | None) -> None:
    """Look whether somebody is there, before any work; raises ConfigError."""
    if place is None:
        return
    try:
        runtime.connect(*place, CONNECT_S).close()
    except (OSError, OverflowError, UnicodeError) as error:
        text = f"nobody answers at {what} {name_of(place)}: {error}; start it, or name the address at which it is"
        raise ConfigError(text) from None


def _all_stages(page: Page, job: Job) -> Result | None:
    """All that is to be done; Ctrl-C ends it with what there is by then, and a row that says so."""
    results: list[Result] = []

    def work() -> None:
        _law(page)
        (_own_broker if job.broker is None else _named_broker)(page, job, results)

    ended = guard.attempted(work)
    if isinstance(ended, guard.Raised):
        if not isinstance(ended.error, KeyboardInterrupt):
            raise ended.error
        page.add([Row("verify", "the whole of it", "unknown", guard.STOPPED)])
    return results[0] if results else None


def _law(page: Page) -> None:
    page.stage("the law: exploring", law.engines_agree, part="law")
    page.stage("the law: our own policies", law.ours_holds, part="law")
    page.stage("the law: RocketMQ 4.9's races", law.races_are_found, part="law")
    page.stage("the law: proving", law.ours_is_proved, part="proof")
    page.stage("a store written by the Java broker", store.java_store_is_read, part="store")


def _own_broker(page: Page, job: Job, results: list[Result]) -> None:
    runtime, store_directory = job.runtime, job.scratch / "store"
    asked = [f"--policy={job.policy_name}", *(f"--knob={knob}" for knob in job.knobs)]
    with ServedBroker(store_directory, job.recorded, *asked) as served:
        with Echo(runtime, served.address, "longpoll-verify") as echo:
            _stage(page, "broker", "the broker: load", partial(broker.load, runtime, served.address, "longpoll-verify"))
        client = partial(broker.real_client, served.name_server, "longpoll-verify-client")
        _stage(page, "client", "the real client", client)
        page.stage("the broker: stop", lambda: [_stopped(served)], part="broker")
    with ServedBroker(job.scratch / "races", None, *asked) as raced:
        _races(page, job, raced.address, "longpoll-verify-races", name="the broker", process_id=raced.process_id)
    left = partial(store.store_row, "store that our broker has left", store_directory)
    page.stage("the store it left", lambda: [left()], part="store")
    with EmbeddedSubject(runtime, str(job.scratch / "suite"), policy=job.policy) as subject:
        _stage(page, "suite", "the property suite", partial(broker.suite, runtime, subject, job.seed))
    limits = job.limits(echo)
    _judge(page, job, limits, results)
    planted = partial(history.faults_are_found, job.recorded, limits, job.scratch)
    page.stage("the history: planted faults", planted, part="history")


def _stopped(served: ServedBroker) -> Row:
    code = served.stop()
    return Row("broker", "stops on SIGTERM", "violated" if code else "ok", f"exit code {code}")


def _named_broker(page: Page, job: Job, results: list[Result]) -> None:
    assert job.broker is not None, "else it is our own"
    runtime, place = job.runtime, job.broker
    name, topic = name_of(place), f"longpoll-verify-{runtime.unix_ms()}"
    with Observer.start(
        runtime,
        brokers=[place],
        record_directory=str(job.recorded),
        name_server=job.name_server,
        policy=job.policy.name,
    ) as observer:
        door = observer.doors[name]
        with Echo(runtime, place, topic) as echo:
            _stage(page, "broker", f"load against {name}, observed", partial(broker.load, runtime, door, topic))
            if observer.name_server_address is not None:
                names = name_of(observer.name_server_address)
                client = partial(broker.real_client, names, f"{topic}-client")
                _stage(page, "client", "the real client, observed", client)
    clauses = partial(conversations, place, job.name_server, job.policy_name, scans=job.policy.expiry == "scan")
    _stage(page, "clauses", f"recorded conversations with {name}", clauses)
    _races(page, job, place, f"{topic}-races", name=name)
    subject = RemoteSubject(place, broker.expectations(job.known, ECHOES * echo.worst_ms))
    _stage(page, "suite", f"the property suite against {name}", partial(broker.suite, runtime, subject, job.seed))
    _judge(page, job, job.limits(echo), results)


def _races(page: Page, job: Job, place: Address, topic: str, *, name: str, process_id: int | None = None) -> None:
    """Race, with nothing else beside it and no proxy before the broker, so that it races as often as can be."""
    if not job.race_s:
        page.add([Row("races", races.WHAT, "skipped", "--race-seconds 0")])
        return

    def work(tell: Callable[[int, int], None]) -> Sequence[Row]:
        watch = Stopwatch()
        with Echo(job.runtime, place, topic) as echo:
            told = races.races(
                job.runtime, place, topic, job.race_s, tell,
                known=job.known, limits=lambda: job.limits(echo), process_id=process_id, seed=job.seed or 0,
            )  # fmt: skip
        return [Row("races", races.WHAT, told.outcome, told.detail, watch.lap())]

    _stage(page, "races", f"messages race the pulls of {name}", work)


def _judge(page: Page, job: Job, limits: Limits, results: list[Result]) -> None:
    def judge() -> Sequence[Row]:
        say = partial(err.print, style="dim")
        result, rows = history.judged(job.recorded, job.known, limits, say)
        results.append(result)
        return rows

    page.stage("the history: judging on Spark", judge, part="history")


def _stage(page: Page, part: str, title: str, work: Callable[[Callable[[int, int], None]], Sequence[Row]]) -> None:
    """Run a stage with a progress bar on stderr."""

    def shown() -> Sequence[Row]:
        with _bar(title) as tell:
            return work(tell)

    page.stage(title, shown, part=part)


@contextmanager
def _bar(title: str) -> Iterator[Callable[[int, int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with progress_bar(*columns) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
