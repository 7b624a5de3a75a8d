"""`longpoll judge`: check recorded histories and report what the broker did wrong."""

from __future__ import annotations

import os
import runpy
import select
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

import click
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

from longpoll.commands.gone import former_options
from longpoll.exit_codes import NO_ROOM
from longpoll.options.engine import Place, cluster_options
from longpoll.options.judge import choose, following_options
from longpoll.options.values import Amount, FilledPath
from longpoll.output import (
    Exit,
    check_directory,
    check_file,
    emit_json,
    err,
    json_option,
    json_text,
    out,
    progress_bar,
    table,
    user_mistakes,
)
from longpoll.views.follow import Places, open_reporter
from longpoll_judge.contract.result import PROPERTIES, Result
from longpoll_judge.errors import ReportNotWrittenError
from longpoll_judge.evidence.survey import OwnProperty
from longpoll_judge.kernel.user_properties import USERS_FAULTS
from longpoll_judge.read.files import absolute
from longpoll_judge.run.follow import Progress, follow
from longpoll_judge.run.pipeline import LATE_MS, WAKE_MS, EngineName
from longpoll_judge.run.pipeline import judge as judge_paths
from longpoll_judge.show.evidence import write_evidence
from longpoll_judge.show.page import render_html
from longpoll_judge.show.report import told_of
from longpoll_spec.errors import ConfigError
from longpoll_spec.history import META_FILE, PART_FILES

EXIT_CODES: Final = {"valid": Exit.OK, "invalid": Exit.VIOLATED, "unknown": Exit.UNKNOWN}
RENDERERS: Final[dict[str, Callable[[Result], str]]] = {".html": render_html, ".json": json_text}
"""Maps the suffix of a report's name to the function that renders the report."""
_FINDINGS_SHOWN_MAX: Final = 10
_STAGES: Final = 3
AUTO: Final = "auto"


@click.command()
@click.argument("paths", nargs=-1, required=True, type=Place(), metavar="PATH...")
@click.option(
    "--engine",
    type=click.Choice([AUTO, *get_args(EngineName)]),
    default=AUTO,
    show_default=True,
    help="local runs in this process, spark on Spark; auto picks local for a short history on this machine.",
)
@cluster_options
@click.option(
    "--report",
    "reports",
    multiple=True,
    type=FilledPath(dir_okay=False),
    metavar="FILE",
    help="Write a report: .html (one self-contained page) or .json; repeatable.",
)
@click.option(
    "--evidence",
    type=FilledPath(file_okay=False),
    metavar="DIR",
    help="Write the evidence of each violation as a separate history, which can be judged again.",
)
@click.option(
    "--wake-ms",
    type=Amount(),
    default=WAKE_MS,
    show_default=True,
    help="Maximum milliseconds from a visible message to the answer of a pull that waits for it.",
)
@click.option(
    "--late-ms",
    type=Amount(),
    default=LATE_MS,
    show_default=True,
    help="Maximum milliseconds from a pull's deadline to its answer.",
)
@click.option(
    "--follow",
    "follows",
    is_flag=True,
    help="Judge a history while it is written, until Ctrl-C, and report each finding at once.",
)
@following_options
@click.option(
    "--property",
    "own",
    multiple=True,
    metavar="FILE.py:FUNCTION",
    help="Also check a property of your own: a function over the columns of all pulls; repeatable.",
)
@former_options("judge")
@json_option
@user_mistakes
def judge(  # noqa: PLR0917 - one argument an option
    paths: tuple[Path | str, ...],
    engine: EngineName | Literal["auto"],
    master: str | None,
    conf: Mapping[str, str],
    reports: tuple[Path, ...],
    evidence: Path | None,
    wake_ms: float,
    late_ms: float,
    follows: bool,
    places: Places,
    checkpoint: Path | None,
    own: tuple[str, ...],
    as_json: bool,
) -> None:
    """Judge recorded histories, all of them together. A history is a directory of part files and a meta.json.

    The engine local runs in this process; the engine spark runs on Spark and needs the extra longpoll[spark] and Java.
    Both give the same verdict. By default a history of up to about 10,000,000 events is judged in this process. Spark
    judges longer histories and URIs such as s3a://bucket/history. Spark also judges with --master, --conf or the
    variable SPARK_REMOTE. One line on stderr names the engine and the reason. Without pyspark the default is local.

    \b
    Examples:
      longpoll serve --record /tmp/history           record one
      longpoll judge /tmp/history                    judge it
      longpoll judge /tmp/history --engine spark     judge it on Spark, on all cores
      longpoll judge a b --report verdict.html       two histories together, and a page
      longpoll judge a --evidence found              then judge found/finding-0001-... alone
      longpoll judge a --property mine.py:fair       also check your own property
      longpoll judge a --follow                      while it is written, with each finding at once
      longpoll judge a --follow --findings found.ndjson    each finding once as a line, also after a restart
      longpoll judge a --follow --metrics-port 9464    for Prometheus
      longpoll judge s3a://bucket/a --master spark://host:7077 --conf spark.executor.memory=4g

    Exit codes: 0 valid, 1 invalid, 2 a mistake in the call, 3 unknown (evidence is missing).
    """
    if engine == "local" and (master is not None or conf):
        raise click.UsageError("--engine local does not run on Spark: leave out --master and --conf, or --engine local")
    if own and follows:
        raise click.UsageError("--property checks a complete history: leave out --follow")
    if (places.are_any or checkpoint is not None) and not follows:
        raise click.UsageError("--findings, --checkpoint and --metrics-port need --follow: add it")
    if engine == "local" and checkpoint is not None:
        raise click.UsageError("--checkpoint is for Spark's query: leave it out, or --engine local")
    properties = [own_property(each) for each in own]
    _check_places(reports, evidence, paths)
    _check_told(places, checkpoint, paths)
    running = _chosen(paths, master, conf, is_told=not as_json) if engine == AUTO else engine
    how: Mapping[str, Any] = {
        "engine": running, "master": master, "conf": conf, "wake_ms": wake_ms, "late_ms": late_ms
    }  # fmt: skip
    result = (
        _followed(paths, {**how, "checkpoint": checkpoint}, places)
        if follows
        else _judged(paths, {**how, "properties": properties})
    )
    for report in reports:
        _write_report(report, result)
    if evidence is not None:
        _write_evidence(evidence, result)
    if as_json:
        emit_json(result)
    else:
        show(result)
    raise SystemExit(EXIT_CODES[result.verdict])


def _check_places(reports: Sequence[Path], evidence: Path | None, paths: Sequence[Path | str]) -> None:
    for report in reports:
        _renderer(report)
        check_file(report, "the report")
    for written in (*reports, evidence):
        _check_is_no_evidence(written, paths)
    if evidence is not None:
        check_directory(evidence, "the evidence into")


def _check_told(places: Places, checkpoint: Path | None, paths: Sequence[Path | str]) -> None:
    """Check, before any judging, that the output of --follow can be written and is not part of a history."""
    _check_is_no_evidence(places.findings, paths)
    _check_is_no_evidence(checkpoint, paths)
    if places.findings is not None:
        check_file(places.findings, "the findings")
    if checkpoint is not None:
        check_directory(checkpoint, "the checkpoint into")


def _chosen(paths: Sequence[Path | str], master: str | None, conf: Mapping[str, str], *, is_told: bool) -> EngineName:
    """Choose the engine for `--engine auto`, and print the reason on stderr. With --json, nothing is printed."""
    choice = choose(paths, master=master, conf=conf)
    if is_told:
        # The reason is not printed with --json, because spark-submit merges stdout and stderr of a program.
        err.print(f"engine: {choice.engine}, because {choice.why}", style="dim", soft_wrap=True)
    return choice.engine


def own_property(named: str) -> OwnProperty:
    """Return the function that FILE.py:FUNCTION names; raises ConfigError."""
    file, colon, name = named.rpartition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        raise ConfigError(f"{named!r:.200} is not a property: write FILE.py:FUNCTION")
    try:
        function: Any = runpy.run_path(file).get(name)
    except USERS_FAULTS as error:
        raise ConfigError(f"{file} cannot be run: {type(error).__name__}: {error}") from None
    if not callable(function):
        raise ConfigError(f"{file} has no function {name}")
    return cast("OwnProperty", function)


def _judged(paths: Sequence[Path | str], how: Mapping[str, Any]) -> Result:
    with progress_bar(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()) as progress:
        task = progress.add_task("looking", total=_STAGES)
        return judge_paths(paths, say=lambda stage: progress.update(task, description=stage, advance=1), **how)


def _followed(paths: Sequence[Path | str], how: Mapping[str, Any], places: Places) -> Result:
    """Judge the growing histories until Ctrl-C or SIGTERM, and print a line on stderr for each new finding."""
    progress = Progress(sorted({absolute(path) for path in paths}))

    def say(line: str) -> None:
        err.print(line, soft_wrap=True)

    with _interruptible() as stops, open_reporter(places, progress, say) as teller:
        result = follow(paths, tell=teller.tell, stops=stops, progress=progress, **how)
        teller.tell_last(result)
        return result


@contextmanager
def _interruptible() -> Iterator[Callable[[float], bool]]:
    """Yield a wait function: it returns true if Ctrl-C or SIGTERM ended the wait; a second signal ends the program.

    A signal handler must not take a lock, so it only writes a byte to a pipe, which ends the wait.
    """
    read, write = os.pipe()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def end(_number: int, _frame: object) -> None:
        os.write(write, b".")
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, end)
    try:
        yield lambda seconds: bool(select.select([read], [], [], seconds)[0])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(read)
        os.close(write)


def _renderer(file: Path) -> Callable[[Result], str]:
    render = RENDERERS.get(file.suffix)
    if render is None:
        raise ReportNotWrittenError(f"the name of the report {file} must end in {', '.join(RENDERERS)}")
    return render


def _check_is_no_evidence(written: Path | None, histories: Sequence[Path | str]) -> None:
    """Raise an error if the output would replace a part of a history, or has the name of a part."""
    if written is None:
        return
    place = written.resolve()
    is_evidence = place.name == META_FILE or place.match(PART_FILES)
    if is_evidence and place.parent in {Path(absolute(history)) for history in histories}:
        raise ReportNotWrittenError(f"{written} is part of a history, or has the name of one: write to another place")


def _write_report(file: Path, result: Result) -> None:
    try:
        file.write_text(_renderer(file)(result), encoding="utf-8")
    except OSError as error:
        raise _not_written(error, file, f"the report {file}") from error


def _not_written(error: OSError, place: Path, what: str) -> Exception:
    """Return the error to raise for an unwritable output. A full disk leads to exit code 3, not to a user error."""
    if error.errno in NO_ROOM:
        return OSError(error.errno, error.strerror, str(place))
    return ReportNotWrittenError(f"cannot write {what}: {error.strerror}")


def _write_evidence(directory: Path, result: Result) -> None:
    try:
        write_evidence(directory, result.findings)
    except OSError as error:
        raise _not_written(error, directory, f"the evidence into {directory}") from error


def show(result: Result) -> None:
    """Print a judgement as text for people."""
    speed = f"{result.seconds:.1f} s with {result.engine} after a start of {result.start_seconds:.1f} s"
    limits = ", ".join(f"{name} {value:g}" for name, value in result.thresholds.items())
    out.print(f"verdict: {result.verdict}", style="bold")
    out.print(f"{result.events} events, {result.requests} pulls, {result.queues} queues, {speed}; thresholds: {limits}")
    judged = ", ".join(f"{share} {name}" for name, share in result.shares.items())
    none = ", ".join(name for name in PROPERTIES if not result.judged.get(name)) or "nothing"
    out.print(f"judged: {judged}; not applicable: {none}")
    table(
        "Latencies (upper bounds, ms)",
        ("latency", "count", "p50", "p99", "max"),
        ((name, values.count, *values.texts()) for name, values in result.latency.items()),
    )
    broken = [(name, rate) for name, rate in result.rates.items() if rate.violated]
    if broken:
        table(
            "How often",
            ("property", "violated", "of"),
            ((name, rate.violated, rate.of) for name, rate in broken),
        )
    if result.gaps:
        table("Missing evidence", ("clause", "what"), ((gap["clause"], gap["why"]) for gap in result.gaps))
    if result.notes:
        table("Notes", ("clause", "what"), ((note["clause"], note["why"]) for note in result.notes))
    shown = result.findings[:_FINDINGS_SHOWN_MAX]
    if shown:
        rows = ((f.clause, f.verdict, f"{f.topic}/{f.queue}", f.request, told_of(f), f.why) for f in shown)
        table("Findings", ("clause", "verdict", "queue", "request", "about", "why"), rows)
    more = len(result.findings) - len(shown) + result.findings_left_out
    if more:
        out.print(f"{more} more findings: see --json or --report")
    seen = result.observations[:_FINDINGS_SHOWN_MAX]
    if seen:
        about = ((f.clause, f"{f.topic}/{f.queue}", f.request, told_of(f), f.why) for f in seen)
        table("Observations", ("clause", "queue", "request", "about", "what"), about)
