"""`longpoll conform`: test any broker clause by clause, with the bytes of each mismatch.

`longpoll_conform` has the clauses, the recorded conversations (vectors), and the code that replays them.
"""

from __future__ import annotations

import secrets
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Final, get_args

import attrs
import click
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

import longpoll
from longpoll import exit_codes, extras
from longpoll.options.specification import knob_option, policy_option
from longpoll.options.values import FilledPath, address_of, race_option
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
from longpoll.views.check import show_verdict
from longpoll_conform import holds, pops
from longpoll_conform.broker_process import BrokerProcess
from longpoll_conform.capabilities import Identity, given, identify, is_well
from longpoll_conform.clauses import CLAUSES, OF_LOAD, POLLS, POPS, SEEN, Capability
from longpoll_conform.connection import TOO_SLOW, Echo, SilentError
from longpoll_conform.export import write
from longpoll_conform.known_failures import Change, change, check_only, chosen, read_known, write_known
from longpoll_conform.play import Place
from longpoll_conform.record import record
from longpoll_conform.report import Sections, by_cause, does_not_poll, lines_of, sections, write_reports
from longpoll_conform.report import as_json as json_of
from longpoll_conform.suite import STOPPED, TIME_OVER, Result, Suite
from longpoll_conform.vectors import Vector, read_vectors, write_vectors
from longpoll_runtime.real import RealRuntime
from longpoll_runtime.threads import spawn
from longpoll_spec.errors import UserError
from longpoll_spec.policy import Policy, preset, with_knobs

SHOWN_MAX: Final = 12
"""The maximum number of failures that are shown with their conversations. --json and --pages contain all failures."""


def show(
    suite: Suite,
    results: Sequence[Result],
    identity: Identity,
    code: Exit,
    changed: Change | None,
    *,
    with_bytes: bool = False,
) -> None:
    """Print the result: the verdict, the counts, then a section for each kind of difference."""
    found = sections(suite, results)
    verdict = _verdict(found, code, changed)
    show_verdict(f"this broker does not long-poll; {verdict}" if does_not_poll(results) else verdict)
    out.tell(found.text)
    out.tell(f"policy: {reason(identity)}")
    out.tell(f"capabilities: {', '.join(sorted(suite.capabilities)) or 'none'}")
    _show_sections(found)
    failed = [result for result in results if result.outcome == "FAIL"]
    causes = by_cause(results)
    for first, *others in causes[:SHOWN_MAX]:
        _show_failure(first, others, with_bytes=with_bytes)
    if len(causes) > SHOWN_MAX:
        more = sum(map(len, causes[SHOWN_MAX:]))
        say(f"\n{more} more failed conversations: see --pages DIRECTORY or --json.")
    if any(result.vector.id.startswith(OF_LOAD) for result in failed):
        say("\nnext: repeat with --history DIRECTORY, then longpoll judge DIRECTORY --report FILE shows the events")
    for name in suite.silenced_by:
        out.print(styled("[bold red]silenced[/]: the broker stopped answering after {}", name))
    if changed is not None:
        for name in changed.new:
            out.print(styled("[bold red]new[/]: {} fails and is not a known failure", name))
        for name in changed.mended:
            out.print(styled("[yellow]mended[/]: {} no longer fails: remove it from the list", name))


def reason(identity: Identity) -> str:
    """Return the name of the policy with which the broker is compared, and why this policy was chosen."""
    other = "" if identity.how == "given" else "; --policy NAME chooses another"
    with_ = f" with {', '.join(identity.knobs)}" if identity.knobs else ""
    return f"{identity.policy}{with_}, because {identity.why}{other}"


def _verdict(found: Sections, code: Exit, changed: Change | None) -> str:
    failed, tested = found.counts["FAIL"], found.tested
    if changed is not None and (changed.new or changed.mended):
        return "the known failures changed"
    if failed:
        return f"{failed} of {tested} clauses failed" + (", all of them known" if code == Exit.OK else "")
    if code:
        return "unknown: the broker could not be tested, or stopped answering"
    untested = found.counts["UNTESTED"]
    return "no clause failed" + (f"; {untested} UNTESTED" if untested else "")


def _show_sections(found: Sections) -> None:
    if found.differences:
        rows = [(each.clause, each.outcome, each.sentence, each.seen) for each in found.differences]
        say("")
        table("Differences from RocketMQ", ["clause", "outcome", "clause text", "this broker"], rows)
    if found.bugs:
        bugs = [
            (each.clause, each.outcome, each.bug, f"{'has it' if each.is_there else 'does not have it'}; {each.seen}")
            for each in found.bugs
        ]
        say("")
        table("RocketMQ's own bugs", ["clause", "outcome", "RocketMQ's bug", "this broker"], bugs)
    if found.untested:
        untested = [(" ".join(clauses), why) for why, clauses in found.untested.items()]
        say("")
        table("UNTESTED, not counted", ["clauses", "why"], untested)


def _show_failure(result: Result, others: Sequence[Result], *, with_bytes: bool) -> None:
    out.print(styled("\n[bold red]FAIL[/] {} {}: {}", result.clause.id, result.vector.id, result.vector.title))
    for difference in result.differences[:5]:
        say(f"  {difference.where}\n    expected {difference.expected}\n    got      {difference.got}")
    if result.left_out:
        say(f"  ({result.left_out} steps of the vector are left out: the mismatch does not need them)")
    for line in lines_of(result.spoken, with_bytes=with_bytes):
        say(f"  {line}")
    if others:
        say(f"  {len(others)} more differ in the same way: {' '.join(each.vector.id for each in others)}")


NAME_SERVER_PORT: Final = 9876


def list_clauses(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    """Print every clause and exit."""
    if not wanted:
        return
    rows = [(clause.id, clause.level, clause.sentence, clause.source, " ".join(clause.vectors)) for clause in CLAUSES]
    table("Clauses", ["clause", "level", "text", "source", "vectors"], rows)
    context.exit(0)


@click.command()
@click.option("--broker", "broker_text", metavar="HOST:PORT", help="The broker to test.")
@click.option(
    "--name-server",
    "name_server_text",
    metavar="HOST:PORT",
    help="Its name server.  [default: the broker's host, port 9876]",
)
@policy_option(
    "Test against the recorded answers of this policy.  [default: the version that the broker reports]", None
)
@knob_option("Override one knob of the policy in the load and race tests; repeatable.")
@click.option(
    "--only",
    "only",
    multiple=True,
    metavar="ID",
    help="Test only these clauses or vectors, such as PULL-HOLD-*; repeatable.",
)
@click.option(
    "--exclude",
    "exclude_file",
    type=FilledPath(),
    help="Skip the clauses and vectors in this file, one per line.",
)
@click.option(
    "--known",
    "known_file",
    type=FilledPath(),
    help="A file of known failures. The exit code is 1 when a failure is new, or a known one no longer fails.",
)
@click.option("--write-known", "known_out", type=FilledPath(), help="Write the failures to such a file.")
@click.option(
    "--has",
    "declared",
    multiple=True,
    type=click.Choice(get_args(Capability)),
    help="Assume that the broker has this capability, instead of probing for it; repeatable.",
)
@click.option(
    "--lacks",
    "denied",
    multiple=True,
    type=click.Choice(get_args(Capability)),
    help="Assume that the broker lacks this capability; repeatable.",
)
@click.option("--start", "start", metavar="COMMAND", help="Start the broker, and restart it when it stops answering.")
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), help="Seed for the names of topics and groups.  [default: random]"
)
@race_option
@click.option("--history", type=FilledPath(), help="Keep the history of the load test in this new directory.")
@click.option("--hex", "with_bytes", is_flag=True, help="Show the bytes of each frame too.")
@click.option("--junit", "junit_file", type=FilledPath(), help="Write a JUnit XML report.")
@click.option("--pages", "pages_directory", type=FilledPath(), help="Write an HTML report into this directory.")
@click.option(
    "--clauses",
    "lists",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=list_clauses,
    help="List the clauses and exit.",
)
@click.option(
    "--export",
    "export_directory",
    metavar="DIRECTORY",
    type=FilledPath(),
    help="Write the vectors as JSON lines, with a page that explains how to play them, and exit.",
)
@click.option(
    "--vectors",
    "vectors_file",
    metavar="FILE",
    type=FilledPath(),
    help="Compare with the recordings in this file, instead of those of the policy's version.",
)
@click.option(
    "--record",
    "record_file",
    metavar="FILE",
    type=FilledPath(),
    help="Record the broker's own answers in such a file and exit.",
)
@json_option
@user_mistakes
def conform(
    *,
    broker_text: str | None,
    name_server_text: str | None,
    policy_name: str | None,
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
    with_bytes: bool,
    junit_file: Path | None,
    pages_directory: Path | None,
    export_directory: Path | None,
    vectors_file: Path | None,
    record_file: Path | None,
    as_json: bool,
) -> None:
    """Test any broker that speaks RocketMQ's protocol.

    Each clause is one sentence, shown by conversations that were recorded from a real RocketMQ broker. The first
    clauses test long polling itself: a pull is held, woken, and answered at its deadline. The test replays the
    conversations and continues after a failure. For each cause it shows the shortest conversation that differs,
    decoded, and with --hex in bytes too. Then it runs a load, whose history the judge checks, and a race of messages
    with waiting pulls.

    Without --policy the broker is asked for its version, and the matching preset is used: strict, strict-clone,
    rocketmq-4.9 or rocketmq-5. The result names the preset and the reason. A broker of unknown version is compared with
    rocketmq-5.

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

    Exit codes: 0 no clause failed (or only known ones), 1 a clause failed (or the known failures changed), 2 a mistake
    in the call, 3 unknown: the broker could not be tested, or stopped answering.
    """
    if export_directory is not None:
        _export(export_directory, as_json=as_json)
        return
    if broker_text is None:
        raise UserError("name the broker to test: --broker HOST:PORT")
    broker = address_of(broker_text)
    name_server = address_of(name_server_text) if name_server_text else (broker[0], NAME_SERVER_PORT)
    whole = read_vectors(vectors_file) if vectors_file else None
    excluded = read_known(exclude_file) if exclude_file else frozenset[str]()
    check_only(only)
    if policy_name is not None:
        # Mistakes in these options are reported before the broker gets any request.
        with_knobs(preset(policy_name), knobs)
        chosen(policy_name, only, excluded, whole)
    if history is not None:
        check_new(history)
    known = read_known(known_file) if known_file else None
    run_name = f"{seed:x}" if seed is not None else secrets.token_hex(4)
    place = Place(broker, name_server)
    with ExitStack() as stack:
        restart = _start(place, run_name, start, stack)
        identity = _identified(place, policy_name, as_json=as_json)
        identity = attrs.evolve(identity, knobs=(*identity.knobs, *knobs))
        policy = with_knobs(preset(identity.policy), identity.knobs)
        vectors, seen = chosen(identity.policy, only, excluded, whole)
        echo = stack.enter_context(closing(Echo(place.broker)))
        suite = Suite(
            place, identity.policy, run_name, policy.expiry == "scan",
            restart=restart, declared=set(declared), denied=set(denied),
            echo=echo,
        )  # fmt: skip
        if record_file is not None:
            _record(suite, vectors, record_file, as_json=as_json)
            return
        polled = _begin_polls(
            suite, [name for name in seen if name in POLLS], partial(holds.see, echo=echo, scans=suite.scans)
        )
        popped = _begin_polls(suite, [name for name in seen if name in POPS], partial(pops.see, echo=echo))
        results = _run(suite, vectors)
        results = polled() + popped() + results
        results += _seen(suite, policy, [name for name in seen if name in SEEN], race_s, history)
    write_reports(suite, results, junit_file, pages_directory)
    if known_out is not None:
        write_known(known_out, results)
    changed = change(results, known) if known is not None else None
    code = _exit_of(suite, results, changed)
    if as_json:
        told = {"exit_code": int(code), **json_of(suite, results, identity)}
        if changed is not None:
            told["changed"] = {"new": list(changed.new), "mended": list(changed.mended)}
        emit_json(told)
    else:
        show(suite, results, identity, code, changed, with_bytes=with_bytes)
    if code:
        raise SystemExit(code)


def _export(directory: Path, *, as_json: bool) -> None:
    paths = [str(path) for path in write(directory, longpoll.__version__)]
    if as_json:
        emit_json({"exit_code": int(Exit.OK), "written": paths})
    else:
        for path in paths:
            out.print(styled("{}", path), soft_wrap=True)


def _record(suite: Suite, vectors: Sequence[Vector], path: Path, *, as_json: bool) -> None:
    """Record the broker's own answers. The exit code is 1 if two answers to the same request differ."""
    try:
        suite.find()
        asked = [vector for vector in vectors if not suite.why_not(vector)]
        with progress_bar(TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()) as bar:
            task = bar.add_task("vectors", total=len(asked))
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
            out.print(styled("[bold red]unsteady[/]: two answers to {} differ, so it is not recorded: {}", name, why))
    if code:
        raise SystemExit(code)


def check_new(history: Path) -> None:
    """Raise UserError unless the directory is new or empty: two histories must not be mixed."""
    if history.exists() and (not history.is_dir() or any(history.iterdir())):
        raise UserError(f"{history} is not empty: name a new directory for the history")
    check_directory(history, "the history into")


def _start(place: Place, run_name: str, command: str | None, stack: ExitStack) -> Callable[[], None] | None:
    """Start the broker; returns a function that restarts it, or None without a command. Raises UserError."""
    if command is None:
        return None
    stack.enter_context(exit_codes.interrupted_by_sigterm())
    try:
        return stack.enter_context(BrokerProcess(command, lambda: is_well(place, run_name))).restart
    except SilentError as error:
        raise _silent(error) from None


def _identified(place: Place, policy_name: str | None, *, as_json: bool) -> Identity:
    """Determine the policy with which to compare the broker, and print it before the tests begin. Raises UserError.

    A policy that the user names takes precedence; the output says if the broker's version indicates another policy.
    """
    try:
        found = identify(place)
    except SilentError as error:
        raise _silent(error) from None
    said = f"policy {reason(found)}"
    if policy_name is not None:
        differs = found.how != "default" and found.policy != policy_name
        said = f"{found.why}: without --policy it is compared with {found.policy}" if differs else ""
        found = given(policy_name)
    if said and not as_json:
        err.print(said, style="dim", soft_wrap=True)
    return found


def _silent(error: SilentError) -> UserError:
    return UserError(f"{error}; start the broker, or give --start")


def _run(suite: Suite, vectors: Sequence[Vector]) -> list[Result]:
    try:
        suite.find()
    except SilentError as error:
        raise _silent(error) from None
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
            raise _silent(error) from None


def _begin_polls(
    suite: Suite, names: Sequence[str], see: Callable[[Place, str, Sequence[str]], list[Result]]
) -> Callable[[], list[Result]]:
    """Begin to test held pulls or pops while the conversations run; returns a function that waits for the results.

    Failed tests are repeated when nothing else runs, because a busy machine can delay answers.
    """
    if not names:
        return list
    if "long-polling" in suite.denied:
        return lambda: [suite.untested(name, "--lacks long-polling") for name in names]

    def look(name: str, wanted: Sequence[str]) -> list[Result]:
        try:
            return see(suite.place, f"{suite.run_name}{name}", wanted)
        except SilentError as error:
            return [suite.untested(each, str(error)) for each in wanted]

    found: list[Result] = []
    thread = spawn("conform-polls", lambda: found.extend(look("a", names)))

    def wait() -> list[Result]:
        thread.join()
        again = [result.vector.id for result in found if result.outcome != "PASS"]
        if again and suite.serves():
            by_name = {result.vector.id: result for result in (*found, *look("b", again))}
            return [by_name[name] for name in names]
        return [suite.untested(result.vector.id) if result.outcome == "FAIL" else result for result in found]

    return wait


def _seen(suite: Suite, policy: Policy, names: Sequence[str], race_s: float, history: Path | None) -> list[Result]:
    """Run the load and the race, if the broker still answers, and return their results."""
    if not names or not suite.serves():
        return [suite.untested(name) for name in names]
    try:
        # These modules are imported here because they need an extra, which the recorded conversations do not need.
        from longpoll.verification.limits import declared  # noqa: PLC0415 - see above
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
    untold = {result.why.split(":")[0] for result in results if result.outcome == "UNTESTED"}
    lost = any(why.startswith((STOPPED, TOO_SLOW, TIME_OVER.split(":")[0])) for why in untold)
    passed = any(result.outcome in {"PASS", "NON-STRICT"} for result in tested)
    return Exit.UNKNOWN if not passed or lost or (suite.silenced_by and suite.restart is None) else Exit.OK
