"""`longpoll verify`: runs everything end to end, on our broker or on a named one.

`longpoll.verification` has one module per stage.
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

from longpoll import exit_codes
from longpoll.options.specification import knob_option, policy_option
from longpoll.options.values import SEED_MAX, Amount, FilledPath, Whole, address_of
from longpoll.output import check_directory, emit_json, err, json_option, progress_bar, user_mistakes
from longpoll.verification import broker, history, races, specification
from longpoll.verification.broker import java_store_is_read, store_row
from longpoll.verification.broker_process import HostLatency, ServedBroker
from longpoll.verification.conversations import conversations
from longpoll.verification.limits import ECHOES, Declared, Limits, declared, limits_of
from longpoll.verification.report import Page, Row, Stopwatch, check_page, render_page, write_page
from longpoll.wire.suite.brokers import EmbeddedBroker, RemoteBroker
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
    seed: int | None
    race_s: float
    """Seconds of the race between messages and waiting pulls; 0 to skip it."""
    recorded: Path
    """The directory of the history."""
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


@click.command()
@click.option("--broker", "broker_address", metavar="HOST:PORT", help="Test this broker. Default: start our own.")
@click.option("--name-server", metavar="HOST:PORT", help="Name server of --broker, for the real RocketMQ client.")
@policy_option("The expected policy of the broker.")
@knob_option("Change one knob of the expected policy; repeatable.")
@click.option(
    "--wake-ms",
    type=Amount(),
    help="Maximum ms from a message's arrival to the answer of a held pull. Default: computed from latency.",
)
@click.option(
    "--late-ms", type=Amount(), help="Maximum ms from a pull's deadline to its answer. Default: computed from latency."
)
@click.option("--seed", type=Whole(0, SEED_MAX), help="Seed of the property suite. Default: a new one each time.")
@click.option(
    "--race-seconds",
    "race_s",
    type=Amount(),
    default=races.RACE_S,
    show_default=True,
    help="How long to race messages against waiting pulls; 0 skips the race.",
)
@click.option("--record", type=FilledPath(), help="New directory for the history. Default: inside --report.")
@click.option(
    "--report",
    "report_directory",
    default=REPORT,
    show_default=True,
    type=FilledPath(file_okay=False),
    help="Directory for the report, index.html.",
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
    """Check the specification, test a broker under load, judge its history, and print one report.

    Without --broker, the command starts the reference broker with a temporary store and records its history. With
    --broker, it puts a recording proxy in front of the broker and judges what the proxy recorded. It also replays
    recorded RocketMQ conversations, as `longpoll conform` does.

    --policy and --knob set the expected policy. The command reports behaviour that this policy permits, but does not
    count it as a violation. For example, RocketMQ's own brokers may answer late by one scan period. The report is
    always complete: a stage that cannot run has a row with the reason.

    \b
    Examples:
      longpoll verify
      longpoll verify --json
      longpoll verify --broker 127.0.0.1:10911 --name-server 127.0.0.1:9876 --policy rocketmq-4.9
      longpoll verify --broker 127.0.0.1:10911 --policy rocketmq-5 --knob expiry=own_deadline --late-ms 200 --seed 7
      longpoll verify --broker 127.0.0.1:10911 --policy rocketmq-5 --race-seconds 60

    Exit codes: 0 everything passed, 1 a violation, 2 a mistake in the command line, 3 unknown.
    """
    policy = with_knobs(preset(policy_name), knobs)
    if name_server is not None and broker_address is None:
        raise ConfigError("--name-server needs --broker; add the broker's address")
    runtime = RealRuntime()
    place = None if broker_address is None else address_of(broker_address)
    names = None if name_server is None else address_of(name_server)
    check_page(report_directory)
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
    path = write_page(report_directory, render_page(page.rows, specification.charts(page.rows), result))
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
    """The directory of the history, which must be new or empty."""
    directory = given or report_directory / f"history-{runtime.unix_ms()}"
    if directory.is_dir() and any(directory.iterdir()):
        raise ConfigError(f"{directory} is not empty; choose a new directory for the history")
    check_directory(directory, "the history into")
    return directory.absolute()


def _check_answers(runtime: Runtime, what: str, place: Address | None) -> None:
    """Check before any work that the address accepts connections; raises ConfigError."""
    if place is None:
        return
    try:
        runtime.connect(*place, CONNECT_S).close()
    except (OSError, OverflowError, UnicodeError) as error:
        text = f"cannot connect to {what} {name_of(place)}: {error}; start it, or check the address"
        raise ConfigError(text) from None


def _all_stages(page: Page, job: Job) -> Result | None:
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
    with ServedBroker(store_directory, job.recorded, *asked) as served:
        with HostLatency(runtime, served.address, "longpoll-verify") as echo:
            _stage(page, "broker", "broker: load", partial(broker.load, runtime, served.address, "longpoll-verify"))
        client = partial(broker.real_client, served.name_server, "longpoll-verify-client")
        _stage(page, "client", "real RocketMQ client", client)
        page.stage("broker: stop", lambda: [_stopped(served)], part="broker")
    with ServedBroker(job.scratch / "races", None, *asked) as raced:
        _races(page, job, raced.address, "longpoll-verify-races", name="the broker", process_id=raced.process_id)
    left = partial(store_row, "store that our broker has left", store_directory)
    page.stage("verifying the broker's store", lambda: [left()], part="store")
    with EmbeddedBroker(runtime, str(job.scratch / "suite"), policy=job.policy) as subject:
        _stage(page, "suite", "property suite", partial(broker.suite, runtime, subject, job.seed))
    limits = job.limits(echo)
    _judge(page, job, limits, results)
    planted = partial(history.faults_are_found, job.recorded, limits, job.scratch)
    page.stage("history: injected faults", planted, part="history")


def _stopped(served: ServedBroker) -> Row:
    code = served.stop()
    return Row("broker", "stops on SIGTERM", "violated" if code else "ok", f"exit code {code}")


def _named_broker(page: Page, job: Job, results: list[Result]) -> None:
    assert job.broker is not None, "use _own_broker"
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
        with HostLatency(runtime, place, topic) as echo:
            _stage(page, "broker", f"load against {name} through the proxy", partial(broker.load, runtime, door, topic))
            if observer.name_server_address is not None:
                names = name_of(observer.name_server_address)
                client = partial(broker.real_client, names, f"{topic}-client")
                _stage(page, "client", "real RocketMQ client through the proxy", client)
    clauses = partial(conversations, place, job.name_server, job.policy_name, scans=job.policy.expiry == "scan")
    _stage(page, "clauses", f"recorded conversations with {name}", clauses)
    _races(page, job, place, f"{topic}-races", name=name)
    subject = RemoteBroker(place, broker.expectations(job.known, ECHOES * echo.worst_ms))
    _stage(page, "suite", f"property suite against {name}", partial(broker.suite, runtime, subject, job.seed))
    _judge(page, job, job.limits(echo), results)


def _races(page: Page, job: Job, place: Address, topic: str, *, name: str, process_id: int | None = None) -> None:
    """Run the race alone and without a proxy, so that it happens as often as possible."""
    if not job.race_s:
        page.add([Row("races", races.WHAT, "skipped", "--race-seconds 0")])
        return

    def work(tell: Callable[[int, int], None]) -> Sequence[Row]:
        watch = Stopwatch()
        with HostLatency(job.runtime, place, topic) as echo:
            told = races.races(
                job.runtime, place, topic, job.race_s, tell,
                known=job.known, limits=lambda: job.limits(echo), process_id=process_id, seed=job.seed or 0,
            )  # fmt: skip
        return [Row("races", races.WHAT, told.outcome, told.detail, watch.lap())]

    _stage(page, "races", f"race of messages and pulls at {name}", work)


def _judge(page: Page, job: Job, limits: Limits, results: list[Result]) -> None:
    def judge() -> Sequence[Row]:
        say = partial(err.print, style="dim")
        result, rows = history.judged(job.recorded, job.known, limits, say)
        results.append(result)
        return rows

    page.stage("history: judging on Spark", judge, part="history")


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
