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

from longpoll.commands.gone import former_options
from longpoll.options.specification import knob_option, policy_option
from longpoll.options.values import FilledPath, address_of, race_option
from longpoll.output import check_directory, check_file, emit_json, err, json_option, user_mistakes
from longpoll_runtime import Address, Runtime
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError
from longpoll_spec.policy import preset, with_knobs

REPORT: Final = "longpoll-report"
PAGE: Final = "index.html"
CONNECT_S: Final = 10.0


@click.command()
@click.option("--broker", "broker_address", metavar="HOST:PORT", help="Test this broker. Default: start our own.")
@click.option("--name-server", metavar="HOST:PORT", help="Name server of --broker. Default: port 9876 of its host.")
@policy_option("The expected policy of the broker.")
@knob_option("Change one knob of the expected policy; repeatable.")
@race_option
@click.option(
    "--report",
    "report_directory",
    default=REPORT,
    show_default=True,
    type=FilledPath(file_okay=False),
    help="Directory for the report, index.html.",
)
@json_option
@former_options("verify")
@user_mistakes
def verify(
    *,
    broker_address: str | None,
    name_server: str | None,
    policy_name: str,
    knobs: Sequence[str],
    race_s: float,
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
      longpoll verify --broker 127.0.0.1:10911 --policy rocketmq-5 --knob expiry=own_deadline
      longpoll verify --broker 127.0.0.1:10911 --policy rocketmq-5 --race-seconds 60

    Exit codes: 0 everything passed, 1 a violation, 2 a mistake in the command line, 3 unknown.
    """
    from longpoll.verification import specification, stages  # noqa: PLC0415 - needs extras, which --help does not
    from longpoll.verification.limits import declared  # noqa: PLC0415 - the same
    from longpoll.verification.report import VERDICT, Page, render_page  # noqa: PLC0415 - the same
    from longpoll_judge.show.page import render_html  # noqa: PLC0415 - the same

    policy = with_knobs(preset(policy_name), knobs)
    if name_server is not None and broker_address is None:
        raise ConfigError("--name-server needs --broker; add the broker's address")
    runtime = RealRuntime()
    path = report_directory / PAGE
    history = (report_directory / f"history-{runtime.unix_ms()}").absolute()
    check_directory(report_directory, "the report into")
    check_file(path, "the report")
    place = _answering(runtime, "--broker", broker_address)
    names = _answering(runtime, "--name-server", name_server)
    page = Page()
    with tempfile.TemporaryDirectory(prefix="longpoll-verify-") as scratch:
        known = declared(policy)
        stages.run_all(
            page, stages.Job(known, policy_name, knobs, place, names, race_s, history, Path(scratch), runtime)
        )
    path.write_text(render_page(page.rows, specification.charts(page.rows), page.result), encoding="utf-8")
    if page.result is not None:
        (report_directory / VERDICT).write_text(render_html(page.result), encoding="utf-8")
    if as_json:
        rows = [row.as_json() for row in page.rows]
        emit_json({"exit_code": int(page.exit_code), "rows": rows, "report": str(path), "history": str(history)})
    else:
        page.print()
        err.print(f"report: {path}\nhistory: {history}", soft_wrap=True)
    sys.exit(page.exit_code)


def _answering(runtime: Runtime, what: str, text: str | None) -> Address | None:
    """Parse an address, and check before any work that it accepts connections; raises ConfigError."""
    if text is None:
        return None
    place = address_of(text)
    try:
        runtime.connect(*place, CONNECT_S).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise ConfigError(f"cannot connect to {what} {text}: {error}; start it, or check the address") from None
    return place
