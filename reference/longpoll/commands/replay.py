"""`longpoll replay`: replay the run of a token on the reference code or on a shipped Java broker.

The simulation: `longpoll_simulation`. Breakpoints in Java: `longpoll_java`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from longpoll.exit_codes import interrupted_by_sigterm
from longpoll.options.values import FilledPath
from longpoll.output import Exit, emit_json, err, json_option, out, say, styled, table, user_mistakes
from longpoll_java.breakpoints import Breakpoints
from longpoll_java.broker import started
from longpoll_java.jars import JAVA, NAMES, Jars, chosen
from longpoll_java.replay import Played, play
from longpoll_java.schedule import Schedule, schedule_of, with_after
from longpoll_java.violations import sentence_of, shown_by
from longpoll_simulation.refinement import NotASpecificationStepError, follow, named, under
from longpoll_spec.engines.tokens import replay as replay_law
from longpoll_spec.errors import UserError
from longpoll_spec.model import Action, Trace
from longpoll_spec.policy import preset
from longpoll_spec.render.java_breakpoints import Breakpoint, breakpoints_of, presets_of
from longpoll_spec.render.pictures.text import who
from longpoll_spec.render.story import story_of

REFERENCE: Final = "reference"
TRIES_MAX: Final = 1_000


@click.command()
@click.argument("token")
@click.option(
    "--policy",
    "policy_name",
    metavar="NAME",
    help="Follow the actions of an lp1 token under this policy instead; reference only.",
)
@click.option(
    "--on",
    type=click.Choice([REFERENCE, *NAMES]),
    help=f"The code that follows an lp1 token; java-* needs a JDK, and Maven or --jars.  [default: {REFERENCE}]",
)
@click.option(
    "--jars",
    type=FilledPath(file_okay=False),
    metavar="DIR",
    help="A folder with the jars of the Java broker, such as `lib` of a RocketMQ distribution; replaces Maven.",
)
@click.option(
    "--tries", type=click.IntRange(1, TRIES_MAX), default=1, show_default=True, help="Number of replays on Java."
)
@click.option("--with-7359", "rechecks", is_flag=True, help="Add the recheck of pull request #7359 to the Java broker.")
@json_option
@user_mistakes
def replay(
    *,
    token: str,
    policy_name: str | None,
    on: str | None,
    jars: Path | None,
    tries: int,
    rechecks: bool,
    as_json: bool,
) -> None:
    """Replay a token on the reference code or on a Java broker, step by step.

    A token of `longpoll check` becomes a schedule of the real hold service; each step is checked against the
    specification as it runs. With --policy the replay goes as far as that policy allows.

    With --on java-4.9.7 the token becomes a schedule of that unmodified broker. Breakpoints stop its threads, and they
    continue in the order of the token. The output shows each step of the specification next to the behaviour of the
    broker (docs/java.md). This needs a JDK (11 or later) on PATH. Maven downloads the broker and Byteman once, with
    network access. Without Maven, name a folder of jars with --jars; Byteman's jar must be in it too.

    \b
    Examples:
      longpoll check --policy rocketmq-4.9
      longpoll replay lp1.lqxyb2NrZXRt...
      longpoll replay lp1.lqxyb2NrZXRt... --policy strict
      longpoll replay lp1.lqxyb2NrZXRt... --on java-4.9.7
      longpoll replay lp1.lqxyb2NrZXRt... --on java-5.5.0 --tries 20
      longpoll replay lp1.lqxyb2NrZXRt... --jars rocketmq-all-5.5.0-bin-release/lib --json

    Exit codes: 0 the run was followed to its end and nothing unexpected happened; 1 a promise was broken, or the code
    differs from the specification; 2 a mistake in the call; 3 the run could not be followed to its end. On Java, 0
    also means that the broker violated the property of the token, as the specification says.
    """
    on_java = jars is not None or (on is not None and on != REFERENCE)
    if rechecks and not on_java:
        raise UserError(
            "--with-7359 needs --on or --jars of a Java broker; for the reference use --policy rocketmq-pr7359"
        )
    if on_java:
        if policy_name is not None:
            raise UserError(
                "--policy applies only to the reference broker: the version of a Java broker decides its policy"
            )
        _replay_on_java(token, chosen(on, jars), tries, rechecks=rechecks, as_json=as_json)
    else:
        _replay_law(token, policy_name, as_json=as_json)


def _replay_law(token: str, policy_name: str | None, *, as_json: bool) -> None:
    trace, cannot = replay_law(token), None
    wanted = trace.depth
    if policy_name is not None:
        trace, cannot = under(preset(policy_name), trace)
    policy = trace.model.policy.name
    try:
        followed = follow(trace)
    except NotASpecificationStepError as error:
        if as_json:
            emit_json({"exit_code": int(Exit.VIOLATED), "policy": policy, "said": str(error)})
        else:
            out.print(styled("[red]broken[/red]: {}", error))
        raise SystemExit(Exit.VIOLATED) from None
    is_whole = followed.steps == wanted
    code = Exit.OK if is_whole else Exit.UNKNOWN
    if is_whole:
        said = f"the code of {policy} follows the run to its end: {wanted} steps in {len(followed.moves)} moves"
    elif cannot is not None and followed.is_whole:
        said = f"{policy} allows {followed.steps} of {wanted} steps: it has no action {named(cannot)} then"
    else:
        said = (
            f"the code of {policy} follows {followed.steps} of {wanted} steps: the rest is one critical section there"
        )
    if as_json:
        told = {"exit_code": int(code), "policy": policy, "said": said}
        emit_json(told | {"steps": followed.steps, "of": wanted, "moves": list(followed.told)})
    else:
        out.print(styled("[green]{}[/green]" if is_whole else "[yellow]{}[/yellow]", said))
        say("\n" + "\n".join(f"{number:3}  {each}" for number, each in enumerate(followed.told, 1)))
    if code:
        raise SystemExit(code)


# -- on Java ---------------------------------------------------------------------------------------------------------


def _replay_on_java(token: str, jars: Jars, tries: int, *, rechecks: bool, as_json: bool) -> None:
    trace, cannot = _for_version(replay_law(token), jars.version)
    if cannot is not None:
        said = f"{trace.model.policy.name} allows {trace.depth} steps: it has no action {named(cannot)} then"
        _end_early(said, jars.version, trace, as_json=as_json)
    gates = breakpoints_of(jars.version, lmq=trace.model.policy.name == "rocketmq-lmq")
    schedule = with_after(schedule_of(trace, gates), shown_by(trace))
    played = []
    # Both signals end the broker that was started.
    with interrupted_by_sigterm():
        for one in _played(jars, schedule, tries, rechecks=rechecks):
            played.append(one)
            if not as_json:
                _tell(one, trace, gates, jars.version, f"try {len(played)} of {tries}: " if tries > 1 else "")
    code = max(map(_code, played))
    if as_json:
        told = [_told(one, trace) for one in played]
        head = {"exit_code": int(code), "on": f"{JAVA}{jars.version}", "policy": trace.model.policy.name}
        emit_json(head | {"property": trace.property_name, "of": trace.depth, "tries": told})
    if code:
        raise SystemExit(code)


def _for_version(trace: Trace, version: str) -> tuple[Trace, Action | None]:
    """The run under the policy that claims to describe a version, and the first action that it does not have."""
    if trace.model.policy.name in presets_of(version):
        return trace, None
    changed, cannot = under(preset(presets_of(version)[0]), trace)
    return Trace(changed.model, changed.steps, trace.property_name), cannot


def _end_early(said: str, version: str, trace: Trace, *, as_json: bool) -> None:
    if as_json:
        emit_json({
            "exit_code": int(Exit.UNKNOWN), "on": f"{JAVA}{version}", "policy": trace.model.policy.name, "said": said
        })  # fmt: skip
    else:
        out.print(styled("[yellow]{}[/yellow]", said))
    raise SystemExit(Exit.UNKNOWN)


def _played(jars: Jars, schedule: Schedule, tries: int, *, rechecks: bool) -> Iterator[Played]:
    """Each attempt, on one broker; a broker that the run stops is restarted."""
    left = tries
    while left:
        with Breakpoints() as stage:
            err.print(f"starting the Java broker {jars.version}")
            with started(jars, stage, lmq=schedule.lmq, slave=schedule.slave, rechecks=rechecks) as broker:
                while left and broker.is_running:
                    left -= 1
                    yield play(broker, schedule)
                    if any(move.kind == "stop" for step in schedule.steps for move in step.moves):
                        break


def _code(played: Played) -> Exit:
    if played.otherwise:
        return Exit.VIOLATED
    return Exit.OK if played.is_whole and not played.cannot else Exit.UNKNOWN


def _tell(played: Played, trace: Trace, gates: Sequence[Breakpoint], version: str, which: str) -> None:
    """Print the result of an attempt: its verdict, and for the first one each step next to the specification's."""
    if played.otherwise:
        out.tell(styled("{}[red]Java {} differs from the specification[/red]: {}", which, version, played.otherwise))
    elif played.cannot:
        made = f"{len(played.steps)} of {played.of} steps"
        out.tell(styled("{}[yellow]Java {} was followed for {}[/yellow]: {}", which, version, made, played.cannot))
    else:
        broke = f", and violates {trace.property_name}: {sentence_of(trace.property_name)}" if played.broken else ""
        ends = styled(
            "{}[green]Java {} follows the run to its end[/green], {} steps{}", which, version, played.of, broke
        )
        out.tell(ends)
    if not which or which.startswith("try 1 "):
        _tell_steps(played, trace)
        _name_gates(played, gates)
    for each in played.shown:
        say(f"  {each}")


def _tell_steps(played: Played, trace: Trace) -> None:
    rows = [
        (place, f"{who(scene)} {scene.sentence}".strip(), "; ".join(seen.said), f"{seen.at_ms:,.0f}")
        for place, (scene, seen) in enumerate(zip(story_of(trace).scenes, played.steps, strict=False), 1)
    ]
    table("Step by step", ("step", "specification", "broker", "ms"), rows, right=("step", "ms"))


def _name_gates(played: Played, gates: Sequence[Breakpoint]) -> None:
    """Print the source locations of the gates that the steps mention."""
    said = " ".join(words for seen in played.steps for words in seen.said).split()
    for gate in gates:
        if gate.name in said:
            say(f"  {gate.name}: {gate.words}")


def _told(played: Played, trace: Trace) -> dict[str, Any]:
    scenes = story_of(trace).scenes
    return {
        "followed": len(played.steps),
        "broken": played.broken,
        "cannot": played.cannot,
        "otherwise": played.otherwise,
        "steps": [
            {"action": scene.action, "law": scene.sentence, "seen": list(seen.said), "at_ms": round(seen.at_ms, 1)}
            for scene, seen in zip(scenes, played.steps, strict=False)
        ],
        "shown": list(played.shown),
    }
