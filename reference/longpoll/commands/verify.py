"""`longpoll verify`: checks the specification and a broker end to end, ours or a named one, and writes one page.

The stages are in `longpoll.verification.stages`, which is imported when the command runs, because it needs extras.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from longpoll.options.specification import knob_option, policy_option
from longpoll.options.values import Amount, FilledPath, address_of, race_option
from longpoll.output import check_directory, emit_json, err, json_option, user_mistakes
from longpoll_runtime import Address, Runtime
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError
from longpoll_spec.policy import preset, with_knobs

REPORT: Final = "longpoll-report"
CONNECT_S: Final = 10.0


@click.command()
@click.option("--broker", "broker_address", metavar="HOST:PORT", help="Test this broker. Default: start our own.")
@click.option("--name-server", metavar="HOST:PORT", help="Name server of --broker. Default: port 9876 of its host.")
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
@race_option
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
      longpoll verify --broker 127.0.0.1:10911 --policy rocketmq-5 --knob expiry=own_deadline --late-ms 200
      longpoll verify --broker 127.0.0.1:10911 --policy rocketmq-5 --race-seconds 60

    Exit codes: 0 everything passed, 1 a violation, 2 a mistake in the command line, 3 unknown.
    """
    from longpoll.verification import specification, stages  # noqa: PLC0415 - needs extras, which --help does not
    from longpoll.verification.limits import declared  # noqa: PLC0415 - the same
    from longpoll.verification.report import Page, check_page, render_page, write_page  # noqa: PLC0415 - the same

    policy = with_knobs(preset(policy_name), knobs)
    if name_server is not None and broker_address is None:
        raise ConfigError("--name-server needs --broker; add the broker's address")
    runtime = RealRuntime()
    place = None if broker_address is None else address_of(broker_address)
    names = None if name_server is None else address_of(name_server)
    check_page(report_directory)
    history = _history_directory(record, report_directory, runtime)
    _check_answers(runtime, "--broker", place)
    _check_answers(runtime, "--name-server", names)
    page = Page()
    with tempfile.TemporaryDirectory(prefix="longpoll-verify-") as scratch:
        known = declared(policy)
        job = stages.Job(
            known, policy_name, knobs, place, names, wake_ms, late_ms, race_s, history, Path(scratch), runtime
        )
        result = stages.run_all(page, job)
    path = write_page(report_directory, render_page(page.rows, specification.charts(page.rows), result))
    if as_json:
        rows = [row.as_json() for row in page.rows]
        emit_json({"exit_code": int(page.exit_code), "rows": rows, "report": str(path), "history": str(history)})
    else:
        page.print()
        err.print(f"report: {path}", soft_wrap=True)
        err.print(f"history: {history}", soft_wrap=True)
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
        text = f"cannot connect to {what} {place[0]}:{place[1]}: {error}; start it, or check the address"
        raise ConfigError(text) from None
