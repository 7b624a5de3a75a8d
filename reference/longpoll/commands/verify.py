"""`longpoll verify`: the main job, end to end, on our broker or on a named one.

Leaves out every stage's work: `longpoll.verification` has a module for each.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Final

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from longpoll.commands.serve import address as parse_address
from longpoll.output import emit_json, err, json_option, user_mistakes
from longpoll.verification import broker, history, html, law, store
from longpoll.verification.page import Page, Row
from longpoll.verification.served import ServedBroker
from longpoll_broker.config import BrokerConfig, StoreConfig
from longpoll_broker.errors import ConfigError
from longpoll_broker.runtime.real import RealRuntime
from longpoll_broker.service.observe.observer import Observer, name_of
from longpoll_broker.testing.served.subject import EmbeddedSubject, RemoteSubject, expectations_of
from longpoll_judge.result import Result
from longpoll_spec.policy import preset

REPORT: Final = "longpoll-report"


@click.command()
@click.option("--broker", "broker_address", metavar="HOST:PORT", help="Run the suite against this broker instead.")
@click.option("--name-server", metavar="HOST:PORT", help="That broker's name server, for the real client.")
@click.option("--policy", "policy_name", default="strict", show_default=True, help="What is expected of the broker.")
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
    report_directory: Path,
    as_json: bool,
) -> None:
    """Explore and prove the law, run the property suite against a broker, judge the history it left, print one page.

    Without --broker the reference broker is started in a process of its own, on a temporary store, recording.
    A named broker is put behind a recording proxy, and what it did under the load is judged.

    \b
    Examples:
      longpoll verify
      longpoll verify --json
      longpoll verify --broker 127.0.0.1:10911 --name-server 127.0.0.1:9876 --policy rocketmq-4.9

    Exit codes: 0 all as it should be, 1 violated or invalid, 2 a mistake in the call, 3 unknown.
    """
    preset(policy_name)
    if name_server is not None and broker_address is None:
        raise ConfigError("--name-server goes with --broker: name the broker as well")
    html.check(report_directory)
    page = Page()
    _law(page)
    with tempfile.TemporaryDirectory(prefix="longpoll-verify-") as scratch:
        if broker_address is None:
            result = _own_broker(page, Path(scratch), policy_name)
        else:
            result = _named_broker(page, Path(scratch), broker_address, name_server, policy_name)
    path = html.write(report_directory, html.render(page.rows, law.charts(page.rows), result))
    if as_json:
        rows = [row.as_json() for row in page.rows]
        emit_json({"exit_code": int(page.exit_code), "rows": rows, "report": str(path)})
    else:
        page.print()
        err.print(f"report: {path}", markup=False)
    sys.exit(page.exit_code)


def _law(page: Page) -> None:
    page.stage("the law: exploring", law.engines_agree)
    page.stage("the law: our own policies", law.ours_holds)
    page.stage("the law: RocketMQ 4.9's races", law.races_are_found)
    page.stage("the law: proving", law.ours_is_proved)
    page.stage("a store written by the Java broker", store.java_store_is_read)


def _own_broker(page: Page, scratch: Path, policy_name: str) -> Result:
    runtime = RealRuntime()
    recorded, store_directory = scratch / "history", scratch / "store"
    with ServedBroker(store_directory, recorded, "--policy", policy_name) as served:
        _stage(page, "the broker: load", partial(broker.load, runtime, served.address, "longpoll-verify"))
        _stage(page, "the real client", partial(broker.real_client, served.name_server, "longpoll-verify-client"))
        page.stage("the broker: stop", lambda: [_stopped(served)])
    page.stage("the store it left", lambda: [store.store_row("store that our broker has left", store_directory)])
    with EmbeddedSubject(runtime, str(scratch / "suite"), policy=preset(policy_name)) as subject:
        _stage(page, "the property suite", partial(broker.suite, runtime, subject))
    result = _judge(page, recorded)
    page.stage("the history: planted faults", lambda: history.faults_are_found(recorded, scratch))
    return result


def _stopped(served: ServedBroker) -> Row:
    code = served.stop()
    return Row("broker", "stops on SIGTERM", "violated" if code else "ok", f"exit code {code}")


def _named_broker(page: Page, scratch: Path, broker_address: str, name_server: str | None, policy_name: str) -> Result:
    runtime = RealRuntime()
    place = parse_address(broker_address)
    topic = f"longpoll-verify-{runtime.unix_ms()}"
    recorded = scratch / "history"
    with Observer.start(
        runtime,
        brokers=[place],
        record_directory=str(recorded),
        name_server=None if name_server is None else parse_address(name_server),
    ) as observer:
        door = observer.doors[name_of(place)]
        _stage(page, f"load against {broker_address}, observed", partial(broker.load, runtime, door, topic))
        if observer.name_server_address is not None:
            names = name_of(observer.name_server_address)
            _stage(page, "the real client, observed", partial(broker.real_client, names, f"{topic}-client"))
    subject = RemoteSubject(place, expectations_of(preset(policy_name), BrokerConfig(), StoreConfig()))
    _stage(page, f"the property suite against {broker_address}", partial(broker.suite, runtime, subject))
    return _judge(page, recorded)


def _judge(page: Page, recorded: Path) -> Result:
    results: list[Result] = []

    def judge() -> Sequence[Row]:
        result, rows = history.judged(recorded, lambda text: err.print(f"  [dim]{text}[/]"))
        results.append(result)
        return rows

    page.stage("the history: judging on Spark", judge)
    return results[0]


def _stage(page: Page, title: str, work: Callable[[Callable[[int, int], None]], Sequence[Row]]) -> None:
    """Run a stage with a progress bar on stderr."""
    with _bar() as bar:
        task = bar.add_task(title, total=None)
        rows = work(lambda done, total: bar.update(task, completed=done, total=total))
    page.stage(title, lambda: rows)


def _bar() -> AbstractContextManager[Progress]:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=err,
        transient=True,
    )
