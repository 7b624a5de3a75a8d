"""`longpoll kit`: tests the long polling of any service for some time, and gives one verdict.

The test is `longpoll_kit`; the services that need no code are in `longpoll_kit.subjects`.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import click
from click.core import ParameterSource
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from longpoll.options.values import SEED_MAX, Duration, FilledPath, Whole
from longpoll.output import Exit, emit_json, json_option, out, progress_bar, say, styled, user_mistakes
from longpoll_kit.example import BODY_MAX, HERD_MAX
from longpoll_kit.model import Allowances
from longpoll_kit.subjects import subject_for
from longpoll_recorder.writer import HistoryWriter
from longpoll_runtime.real import RealRuntime

if TYPE_CHECKING:
    from longpoll_kit.machine import LongPollMachine
    from longpoll_kit.run import KitReport

LIMITS: Final = Allowances()
SILENCE_MS_MAX: Final = 30_000
CODES: Final = {"valid": Exit.OK, "invalid": Exit.VIOLATED, "unknown": Exit.UNKNOWN}
POLLS_MAX: Final = 5_000


@click.command()
@click.argument("url")
@click.option("--mode", help="How to poll. redis: blpop, blmove, xread, xreadgroup. etcd: watch, newest.")
@click.option(
    "--service", type=FilledPath(dir_okay=False), help="For http://: the TOML file that describes the service."
)
@click.option(
    "--for", "seconds", type=Duration(above_zero=True), default=60.0, show_default=True,
    help="Seconds until the verdict, when the step in progress is over. The longest silence is half of it, up to 30 s.",
)  # fmt: skip
@click.option("--wake-ms", type=Whole(1), default=LIMITS.wake_ms, show_default=True, help="Longest wake.")
@click.option(
    "--late-ms", type=Whole(1), default=LIMITS.late_ms, show_default=True, help="Latest answer after a deadline."
)
@click.option(
    "--polls",
    type=Whole(1, POLLS_MAX),
    default=HERD_MAX,
    show_default=True,
    help="Most polls that wait at once.",
)
@click.option("--body-max", type=Whole(1), default=BODY_MAX, show_default=True, help="Bytes of the largest message.")
@click.option("--early-answers", is_flag=True, help="The service may answer empty before a poll's deadline.")
@click.option("--seed", type=Whole(0, SEED_MAX), help="Repeat the random choices of another run.")
@click.option("--history", type=FilledPath(file_okay=False), help="Also record a history, for `longpoll judge`.")
@json_option
@user_mistakes
def kit(
    *,
    url: str,
    mode: str | None,
    service: Path | None,
    seconds: float,
    wake_ms: int,
    late_ms: int,
    polls: int,
    body_max: int,
    early_answers: bool,
    seed: int | None,
    history: Path | None,
    as_json: bool,
) -> None:
    """Test the long polling of the service at URL: lost wakeups, late deadlines, lost and repeated messages.

    URL begins with redis://, nats://, kafka://, sqs+http://, beanstalkd://, etcd:// or http://. The test publishes to
    new queues, whose names begin with kit-, and reads them. It does not stop the service.

    \b
    Examples:
      longpoll kit redis://127.0.0.1:6379
      longpoll kit redis://127.0.0.1:6379 --mode xread --for 60s
      longpoll kit nats://127.0.0.1:4222
      longpoll kit sqs+http://127.0.0.1:5000
      longpoll kit http://127.0.0.1:8080 --service jobs.toml

    Exit codes: 0 valid, 1 invalid, 2 a mistake or no service at URL, 3 unknown.
    """
    from longpoll_kit.machine import LongPollMachine  # noqa: PLC0415 - the help works without Hypothesis

    attributes = {
        "subject": staticmethod(subject_for(url, mode, service)),
        "wake_ms": wake_ms,
        "late_ms": late_ms,
        "polls_max": polls,
        "body_max": body_max,
        "may_answer_early": early_answers,
        "silence_ms": round(min(SILENCE_MS_MAX, 500 * seconds)),
    }
    machine = type("Machine", (LongPollMachine,), attributes)
    if history is None:
        report = _exercised(machine, seconds, seed)
    else:
        with HistoryWriter(RealRuntime(), history) as written:
            report = _exercised(machine, seconds, seed, written)
    again = [*click.get_current_context().command_path.split(), *_given(), "--seed", str(report.seed)]
    _show(attrs.evolve(report, code=shlex.join(again) if report.code else ""), as_json=as_json)


def _given() -> list[str]:
    """The words of the command line, without the option for the seed."""
    context = click.get_current_context()
    words: list[str] = []
    for parameter in context.command.params:
        value = context.params[parameter.name or ""]
        source = context.get_parameter_source(parameter.name or "")
        if source is not ParameterSource.COMMANDLINE or parameter.name in {"seed", "as_json"}:
            continue
        is_option = isinstance(parameter, click.Option)
        words += [parameter.opts[0]] * is_option + [str(value)] * (value is not True)
    return words


def _exercised(
    machine: type[LongPollMachine], seconds: float, seed: int | None, history: HistoryWriter | None = None
) -> KitReport:
    with progress_bar(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()) as bar:
        task = bar.add_task("extremes", total=None)
        return machine.exercise(
            seed=seed,
            history=history,
            seconds=seconds,
            example_done=lambda count: bar.update(task, description=f"{count:,} examples"),
        )


def _show(report: KitReport, *, as_json: bool) -> None:
    code = CODES[report.verdict]
    if as_json:
        told: dict[str, Any] = attrs.asdict(report)
        emit_json({"exit_code": int(code), **told})
    else:
        first, *others = str(report).splitlines()
        colour = {"valid": "green", "invalid": "bold red", "unknown": "yellow"}[report.verdict]
        out.print(styled(f"[{colour}]{{}}[/]{{}}", report.verdict, first.removeprefix(report.verdict)), soft_wrap=True)
        say("\n".join(others))
    if code:
        raise SystemExit(code)
