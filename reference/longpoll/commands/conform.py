"""`longpoll conform`: any broker, clause by clause, with the bytes that show what it does otherwise.

Leaves out clauses, vectors and playing them (`longpoll_conform`).
"""

from __future__ import annotations

import secrets
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, get_args

import click
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

import longpoll
from longpoll import extras, guard
from longpoll.addresses import address_of
from longpoll.options.amounts import Amount
from longpoll.options.law import knob_option, policy_option
from longpoll.output import (
    Exit,
    check_directory,
    emit_json,
    err,
    json_option,
    out,
    progress_bar,
    say,
    styled,
    table,
    user_mistakes,
)
from longpoll_conform.capabilities import is_well
from longpoll_conform.clauses import BY_ID, CLAUSES, Capability
from longpoll_conform.known import Change, change, chosen, read_known, write_known
from longpoll_conform.line import SilentError
from longpoll_conform.play import Place
from longpoll_conform.record import record
from longpoll_conform.report.badge import badge
from longpoll_conform.report.data import as_json as json_of
from longpoll_conform.report.talk import lines_of
from longpoll_conform.report.written import write_reports
from longpoll_conform.shipped.archive import write
from longpoll_conform.started import Started
from longpoll_conform.suite import OUTCOMES, Result, Suite, by_clause
from longpoll_conform.vectors import Vector, read_vectors, write_vectors
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import UserError
from longpoll_spec.policy import Policy, preset, with_knobs

MARKS: Final = {
    "PASS": "green", "FAIL": "bold red", "NON-STRICT": "yellow", "UNIMPLEMENTED": "magenta", "UNTESTED": "dim",
}  # fmt: skip
NAME_SERVER_PORT: Final = 9876
RACE_S: Final = 8.0
SHOWN_MAX: Final = 12
"""Failures that are shown with their conversations; all are in --json and --pages."""


def list_clauses(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    """Print every clause, and end."""
    if not wanted:
        return
    rows = [(clause.id, clause.level, clause.sentence, clause.source, " ".join(clause.vectors)) for clause in CLAUSES]
    table("clauses", ["clause", "level", "what it says", "source", "vectors"], rows)
    context.exit(0)


@click.command()
@click.option("--broker", "broker_text", metavar="HOST:PORT", help="The broker to hold against the clauses.")
@click.option(
    "--name-server",
    "name_server_text",
    metavar="HOST:PORT",
    help="Its name server; none: the broker's host, port 9876.",
)
@policy_option("What the broker is meant to be: whose recorded answers it is held to.")
@knob_option("One knob of the policy that the broker has otherwise, for load and race; repeatable.")
@click.option(
    "--only", "only", multiple=True, metavar="ID", help="Clauses or vectors, * allowed: PULL-HOLD-*; repeatable."
)
@click.option(
    "--exclude",
    "exclude_file",
    type=click.Path(path_type=Path),
    help="A file of clauses or vectors that are not asked, one a line.",
)
@click.option(
    "--known",
    "known_file",
    type=click.Path(path_type=Path),
    help="A file of known failures: the exit code is 1 when one comes or goes.",
)
@click.option("--write-known", "known_out", type=click.Path(path_type=Path), help="Write what failed as such a file.")
@click.option(
    "--has",
    "declared",
    multiple=True,
    type=click.Choice(get_args(Capability)),
    help="A capability the broker has, whatever it answers; repeatable.",
)
@click.option(
    "--lacks",
    "denied",
    multiple=True,
    type=click.Choice(get_args(Capability)),
    help="A capability it lacks; repeatable.",
)
@click.option(
    "--start", "start", metavar="COMMAND", help="Starts the broker, and starts it again when it serves nobody any more."
)
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), help="Names of topics and groups are made of it; none: drawn."
)
@click.option(
    "--race-seconds",
    "race_s",
    type=Amount(),
    default=RACE_S,
    show_default=True,
    help="How long messages race the pulls that wait for them; 0: not at all.",
)
@click.option(
    "--history", type=click.Path(path_type=Path), help="Keep the load's history in this new directory, for the judge."
)
@click.option("--junit", "junit_file", type=click.Path(path_type=Path), help="Write JUnit's XML.")
@click.option(
    "--pages", "pages_directory", type=click.Path(path_type=Path), help="Write pages of HTML into this directory."
)
@click.option(
    "--clauses",
    "lists",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=list_clauses,
    help="List the clauses, and end.",
)
@click.option(
    "--export",
    "export_directory",
    metavar="DIRECTORY",
    type=click.Path(path_type=Path),
    help="Write the vectors as JSON lines, with a page that tells how to play them, and end.",
)
@click.option(
    "--vectors",
    "vectors_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A file of recordings whose answers the broker is held to, instead of the policy's version.",
)
@click.option(
    "--record",
    "record_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Ask every question that applies, write the broker's own answers as such a file, and end.",
)
@json_option
@user_mistakes
def conform(
    *,
    broker_text: str | None,
    name_server_text: str | None,
    policy_name: str,
    knobs: Sequence[str],
    only: Sequence[str],
    exclude_file: Path | None,
    known_file: Path | None,
    known_out: Path | None,
    declared: Sequence[Capability],
    denied: Sequence[Capability],
    start: str | None,
    seed: int | None,
    race_s: float,
    history: Path | None,
    junit_file: Path | None,
    pages_directory: Path | None,
    export_directory: Path | None,
    vectors_file: Path | None,
    record_file: Path | None,
    as_json: bool,
) -> None:
    """Hold any broker against the clauses of the pull path, and go on after every failure.

    Each clause is shown by conversations that were recorded from a real RocketMQ broker. For what differs the whole
    conversation is shown, decoded and in bytes, made as small as it can be. Then comes a load, whose history is judged,
    and a race of messages with the pulls that wait for them. Names are of the run, so that it can be repeated on the
    same broker.

    \b
    Examples:
      longpoll conform --broker 127.0.0.1:10911
      longpoll conform --broker 127.0.0.1:10911 --policy rocketmq-5 --only 'PULL-*' --pages report
      longpoll conform --broker 127.0.0.1:10911 --known known-failures.txt --junit conform.xml
      longpoll conform --broker 127.0.0.1:10911 --policy rocketmq-5 --knob expiry=own_deadline --only 'RUN-*'
      longpoll conform --broker 127.0.0.1:10911 --start 'my-broker --port 10911'
      longpoll conform --export vectors
      longpoll conform --broker 127.0.0.1:10911 --record mine.jsonl
      longpoll conform --broker 127.0.0.1:10911 --vectors mine.jsonl

    Exit codes: 0 nothing failed (or nothing but what is known), 1 something did (or changed), 2 a mistake in the call,
    3 unknown: the broker could not be asked, or served nobody any more.
    """
    if export_directory is not None:
        _export(export_directory, as_json=as_json)
        return
    if broker_text is None:
        raise UserError("--broker HOST:PORT says which broker is asked")
    broker = address_of(broker_text)
    name_server = address_of(name_server_text) if name_server_text else (broker[0], NAME_SERVER_PORT)
    policy = with_knobs(preset(policy_name), knobs)
    whole = read_vectors(vectors_file) if vectors_file else None
    vectors, seen = chosen(policy_name, only, read_known(exclude_file) if exclude_file else (), whole)
    if history is not None:
        check_new(history)
    known = read_known(known_file) if known_file else None
    run_name = f"{seed:x}" if seed is not None else secrets.token_hex(4)
    suite = Suite(
        Place(broker, name_server), policy_name, run_name, policy.expiry == "scan",
        declared=set(declared), denied=set(denied),
    )  # fmt: skip
    if record_file is not None:
        _record(suite, vectors, record_file, as_json=as_json)
        return
    with ExitStack() as stack:
        results = _run(suite, vectors, start, stack)
        results += _seen(suite, policy, seen, race_s, history)
    write_reports(suite, results, junit_file, pages_directory)
    if known_out is not None:
        write_known(known_out, results)
    changed = change(results, known) if known is not None else None
    code = _exit_of(suite, results, changed)
    if as_json:
        told = {"exit_code": int(code), **json_of(suite, results)}
        if changed is not None:
            told["changed"] = {"new": list(changed.new), "mended": list(changed.mended)}
        emit_json(told)
    else:
        _show(suite, results, changed)
    if code:
        raise SystemExit(code)


def _export(directory: Path, *, as_json: bool) -> None:
    """Write the vectors for programs of others."""
    paths = [str(path) for path in write(directory, longpoll.__version__)]
    if as_json:
        emit_json({"exit_code": int(Exit.OK), "written": paths})
    else:
        for path in paths:
            out.print(styled("{}", path), soft_wrap=True)


def _record(suite: Suite, vectors: Sequence[Vector], path: Path, *, as_json: bool) -> None:
    """Write the broker's own answers; exit code 1 where it answers one question in two ways."""
    try:
        suite.find()
        asked = [vector for vector in vectors if not suite.why_not(vector)]
        with progress_bar(TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()) as bar:
            task = bar.add_task("questions", total=len(asked))
            found = record(asked, suite.place, suite.run_name, path.name.split(".jsonl")[0], lambda: bar.advance(task))
    except SilentError as error:
        raise UserError(f"{error}; start the broker") from None
    steady = [each.vector for each in found if not each.differences]
    write_vectors(path, steady)
    unsteady = {each.vector.id: str(each.differences[0]) for each in found if each.differences}
    code = Exit.VIOLATED if unsteady else Exit.OK
    if as_json:
        told = {"recorded": len(steady), "not_asked": len(vectors) - len(asked), "unsteady": unsteady}
        emit_json({"exit_code": int(code), **told})
    else:
        do_not = f"{len(vectors) - len(asked)} do not apply to this broker"
        out.print(styled("{} recorded in {}, {}", len(steady), path, do_not), soft_wrap=True)
        for name, why in unsteady.items():
            out.print(styled("[bold red]unsteady[/]: {} is answered in two ways and not recorded: {}", name, why))
    if code:
        raise SystemExit(code)


def check_new(history: Path) -> None:
    """Two histories are not one: raises UserError where there is something."""
    if history.exists() and (not history.is_dir() or any(history.iterdir())):
        raise UserError(f"{history} is not empty: name a new directory for the history")
    check_directory(history, "the history into")


def _run(suite: Suite, vectors: Sequence[Vector], start: str | None, stack: ExitStack) -> list[Result]:
    try:
        if start is not None:
            stack.enter_context(guard.interrupted_by_sigterm())
            started = stack.enter_context(Started(start, lambda: is_well(suite.place, suite.run_name)))
            suite.restart = started.restart
        suite.find()
    except SilentError as error:
        raise UserError(f"{error}; start the broker, or give --start") from None
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with progress_bar(*columns) as bar:
        task = bar.add_task("conversations", total=len(vectors))
        failed = Counter[str]()

        def told(result: Result) -> None:
            failed[result.outcome] += 1
            bar.update(task, advance=1, description=f"{failed['FAIL']} failed")

        suite.told = told
        try:
            return suite.run(vectors)
        except SilentError as error:
            raise UserError(f"{error}; start the broker, or give --start") from None


def _seen(suite: Suite, policy: Policy, names: Sequence[str], race_s: float, history: Path | None) -> list[Result]:
    """What is seen under a load and in a race, of a broker that still serves."""
    if not names or not suite.serves():
        return [suite.untested(name) for name in names]
    try:
        # Here alone: they need an extra, and without it the recorded conversations are asked all the same.
        from longpoll.verification.declared import declared  # noqa: PLC0415 - see above
        from longpoll.verification.under_load import Loaded, see  # noqa: PLC0415 - see above
    except ModuleNotFoundError as error:
        why = extras.missing(error, "judge")
        if why is None:
            raise
        return [suite.untested(name, why) for name in names]
    with tempfile.TemporaryDirectory(prefix="longpoll-conform-") as scratch:
        loaded = Loaded(
            RealRuntime(),
            suite.place.broker,
            f"longpoll-conform-{suite.run_name}",
            declared(policy),
            (history or Path(scratch) / "history").absolute(),
            race_s,
            lambda text: err.print(text, style="dim"),
        )
        return list(see(loaded, names))


def _exit_of(suite: Suite, results: Sequence[Result], changed: Change | None) -> Exit:
    if changed is not None and (changed.new or changed.mended):
        return Exit.VIOLATED
    if changed is None and any(result.outcome == "FAIL" for result in results):
        return Exit.VIOLATED
    tested = [result for result in results if result.outcome != "UNTESTED"]
    lost = any("serves nobody" in result.why for result in results if result.outcome == "UNTESTED")
    passed = any(result.outcome in {"PASS", "NON-STRICT"} for result in tested)
    return Exit.UNKNOWN if not passed or lost or (suite.silenced_by and suite.restart is None) else Exit.OK


# -- shown -----------------------------------------------------------------------------------------------------------


def _show(suite: Suite, results: Sequence[Result], changed: Change | None) -> None:
    clauses = by_clause(results)
    counts = Counter(clauses.values())
    for outcome in OUTCOMES:
        if counts[outcome]:
            out.print(
                styled(f"[{MARKS[outcome]}]{{}}[/] {{}}", outcome, f"{counts[outcome]} of {len(clauses)} clauses")
            )
    say(f"capabilities: {', '.join(sorted(suite.capabilities)) or 'none'}\n")
    _show_clauses(results, clauses)
    failed = [result for result in results if result.outcome == "FAIL"]
    for result in failed[:SHOWN_MAX]:
        _show_failure(result)
    if len(failed) > SHOWN_MAX:
        say(f"\n{len(failed) - SHOWN_MAX} failures more: --pages DIRECTORY or --json have them all.")
    for name in suite.silenced_by:
        out.print(styled("[bold red]silenced[/]: the broker served nobody any more after {}", name))
    if changed is not None:
        _show_change(changed)
    tested = sum(result.outcome != "UNTESTED" for result in results)
    passed = sum(result.outcome == "PASS" for result in results)
    say(f"\nlongpoll conform: {passed} of {tested} as {suite.policy}, {len(failed)} failed")
    say(badge(suite.policy, results))


def _show_clauses(results: Sequence[Result], clauses: dict[str, Any]) -> None:
    rows = []
    for name, outcome in clauses.items():
        if outcome == "PASS":
            continue
        mine = [result for result in results if result.clause.id == name and result.outcome == outcome]
        rows.append((name, outcome, BY_ID[name].sentence, f"{mine[0].vector.id}: {mine[0].why}"))
    if rows:
        table("what did not pass", ["clause", "outcome", "what it says", "what was seen"], rows)


def _show_failure(result: Result) -> None:
    out.print(styled("\n[bold red]FAIL[/] {} {}: {}", result.clause.id, result.vector.id, result.vector.title))
    for difference in result.differences[:5]:
        say(f"  {difference.where}\n    expected {difference.expected}\n    got      {difference.got}")
    if result.left_out:
        say(f"  ({result.left_out} steps of the vector are left out: they do not matter here)")
    for line in lines_of(result.spoken):
        say(f"  {line}")


def _show_change(changed: Change) -> None:
    for name in changed.new:
        out.print(styled("[bold red]new[/]: {} fails and is not among the known failures", name))
    for name in changed.mended:
        out.print(styled("[yellow]mended[/]: {} fails no more: take it off the list", name))
