"""`longpoll explain`: show the run of a token, or have the reference code or a shipped Java broker follow it.

`longpoll_spec.render` describes and draws the run, `longpoll_simulation` runs the reference code, and `longpoll_java`
runs a Java broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from longpoll.exit_codes import interrupted_by_sigterm
from longpoll.options.values import FilledPath
from longpoll.output import Exit, emit_json, err, json_option, out, say, styled, table, user_mistakes
from longpoll_java.breakpoints import Breakpoints
from longpoll_java.broker import started
from longpoll_java.errors import NotOnJavaError
from longpoll_java.jars import JAVA, NAMES, chosen
from longpoll_java.pops import SENTENCES, SHIPPED, UNSHIPPED, is_of_pops, pops_of
from longpoll_java.replay import Played, play
from longpoll_java.schedule import schedule_of, with_after
from longpoll_java.violations import sentence_of, shown_by
from longpoll_spec.custom import load, policy_from
from longpoll_spec.engines.tokens import replay
from longpoll_spec.errors import OutputError, UserError
from longpoll_spec.model import Trace
from longpoll_spec.policy import preset
from longpoll_spec.render.export.traces import trace_json
from longpoll_spec.render.java_breakpoints import POP_GATES, POP_VERSION, Breakpoint, breakpoints_of, presets_of
from longpoll_spec.render.pictures import lanes
from longpoll_spec.render.pictures.text import story_html, story_mermaid, story_text, who
from longpoll_spec.render.story import story_of
from longpoll_spec.specification import properties_of

FORMATS: Final = ("text", "mermaid", "svg", "html", "json")
CODE: Final = "code"
CODES: Final = {"followed": Exit.OK, "differs": Exit.VIOLATED, "unknown": Exit.UNKNOWN}
"""Maps the verdict of a replay to the exit code."""


class Format(click.Choice[str]):
    """The output formats. For the name of a removed format, the error names the replacement."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the format; an unknown format is a usage error, which names the replacement of a removed format."""
        if value == "itf":
            self.fail("itf is no longer written; --json has every variable in every state", param, ctx)
        return super().convert(value, param, ctx)


@click.command()
@click.argument("token")
@click.argument("file", metavar="[FILE]", required=False)
@click.option("--format", "form", type=Format(FORMATS), default="text", show_default=True, help="Output format.")
@click.option(
    "-o",
    "--output",
    type=FilledPath(dir_okay=False),
    help="Write to this file instead of stdout.",
)
@click.option(
    "--on",
    type=click.Choice([CODE, *NAMES]),
    help="Replay the run: on the reference code, or on a Java broker, which needs a JDK, and Maven or --jars.",
)
@click.option(
    "--jars",
    type=FilledPath(file_okay=False),
    metavar="DIR",
    help="A folder with the jars of the Java broker, such as `lib` of a RocketMQ distribution; replaces Maven.",
)
@click.option("--with-7359", "rechecks", is_flag=True, help="Add the recheck of pull request #7359 to the Java broker.")
@click.option(
    "--shortest",
    is_flag=True,
    hidden=True,
    expose_value=False,
    deprecated="Drop it: a token of `longpoll check` already names a shortest run.",
)
@json_option
@user_mistakes
def explain(
    *,
    token: str,
    file: str | None,
    form: str,
    output: Path | None,
    on: str | None,
    jars: Path | None,
    rechecks: bool,
    as_json: bool,
) -> None:
    """Show the run of a token step by step, in RocketMQ's terms, or replay it on a broker with --on.

    A run of a specification file of your own needs the FILE too.

    With --on code the run becomes a schedule of the real hold service, and each step is checked against the
    specification as it runs.

    With --on java-4.9.7 the run becomes a schedule of that unmodified broker. Breakpoints stop its threads, and they
    continue in the order of the token. The output shows each step of the specification next to the behaviour of the
    broker (docs/java.md). Runs of pops need --on java-5.5.0 (docs/pop.md). This needs a JDK (11 or later) on PATH.
    Maven downloads the broker and Byteman once, with network access. Without Maven, name a folder of jars with --jars;
    Byteman's jar must be in it too.

    \b
    Examples:
      longpoll explain TOKEN
      longpoll explain TOKEN table.py
      longpoll explain TOKEN --format mermaid
      longpoll explain TOKEN --format svg --output race.svg
      longpoll explain TOKEN --format html --output race.html
      longpoll explain TOKEN --json
      longpoll explain TOKEN --on code
      longpoll explain TOKEN --on java-4.9.7
      longpoll explain TOKEN_OF_STRICT_POP --on java-5.5.0
      longpoll explain TOKEN --jars rocketmq-all-5.5.0-bin-release/lib --json

    Exit codes of a replay: 0 the run was followed to its end, 1 the code differs from the specification, 2 a mistake in
    the call, 3 the run could not be followed to its end. On Java, 0 also means that the broker violated the property of
    the token, as the specification says.
    """
    on_java = jars is not None or on in NAMES
    if rechecks and not on_java:
        raise UserError("--with-7359 needs --on or --jars of a Java broker")
    if on is None and not on_java:
        _write(_shown(token, form, file, as_json=as_json), output)
        return
    if file is not None:
        raise UserError(f"--on replays runs of a preset: leave it out to show a run of {file}")
    if form != "text" or output is not None:
        raise UserError("--format and --output show a run: leave them out to replay it with --on")
    told = _on_java(token, on, jars, rechecks=rechecks, quiet=as_json) if on_java else _on_code(token)
    if as_json:
        emit_json({key: value for key, value in told.items() if key != "said"})
    elif not on_java:
        _tell(told)
    if CODES[told["verdict"]]:
        raise SystemExit(CODES[told["verdict"]])


def _shown(token: str, form: str, file: str | None, *, as_json: bool) -> str:
    trace = replay(token, None if file is None else load(file))
    story = story_of(trace)
    if as_json or form == "json":
        return msgspec.json.encode(trace_json(trace, story, token)).decode() + "\n"
    if form == "svg":
        return lanes.render(trace) + "\n"
    if form == "html":
        return story_html(story, lanes.render(trace), token)
    return story_mermaid(story) if form == "mermaid" else story_text(story)


def _write(made: str, output: Path | None) -> None:
    if output is None:
        say(made.removesuffix("\n"))
        return
    try:
        output.write_text(made, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {output}: {error.strerror}") from error


# -- replays: each returns the object that --json prints, and a sentence -----------------------------------------------


def _told(token: str, on: str, verdict: str, said: str, **more: Any) -> dict[str, Any]:
    return {"token": token, "on": on, "steps": [], "promised": [], "seen": [], "verdict": verdict, **more, "said": said}


def _promised(trace: Trace) -> list[str]:
    """Return the name of the property that the run violates, and the specification's sentence about this property."""
    stated = (item for item in properties_of(trace.model) if item.name == trace.property_name)
    return [f"{item.name}: {item.sentence}" for item in stated]


def _tell(told: dict[str, Any]) -> None:
    colour = {"followed": "green", "differs": "red", "unknown": "yellow"}[told["verdict"]]
    out.print(styled(f"[{colour}]{{}}[/{colour}]", told["said"]))
    say("\n" + "\n".join(told["seen"]))


def _on_code(token: str) -> dict[str, Any]:
    """Replay the run on the hold service of the reference broker."""
    from longpoll_simulation.refinement import NotASpecificationStepError, follow  # noqa: PLC0415 - needs greenlet

    trace = replay(token)
    policy, promised = trace.model.policy.name, _promised(trace)
    try:
        followed = follow(trace)
    except NotASpecificationStepError as error:
        return _told(token, CODE, "differs", f"broken: {error}", promised=promised, seen=[str(error)])
    if followed.is_whole:
        said = f"the code of {policy} follows the run to its end: {followed.of} steps in {len(followed.moves)} moves"
    else:
        said = f"the code of {policy} follows {followed.steps} of {followed.of} steps: the rest is one critical section"
    return _told(
        token,
        CODE,
        "followed" if followed.is_whole else "unknown",
        said,
        steps=[scene.action for scene in story_of(trace).scenes[: followed.steps]],
        promised=promised,
        seen=[f"{number:3}  {each}" for number, each in enumerate(followed.told, 1)],
    )


def _on_java(token: str, on: str | None, folder: Path | None, *, rechecks: bool, quiet: bool) -> dict[str, Any]:
    """Replay the run on a shipped Java broker. Unless `quiet`, print the result too."""
    jars, trace = chosen(on, folder), replay(token)
    name, promised = f"{JAVA}{jars.version}", _promised(trace)
    pops = is_of_pops(trace.model.policy)
    if pops and jars.version != POP_VERSION:
        raise NotOnJavaError(f"replay has gates for pops in {POP_VERSION} alone: use --on {JAVA}{POP_VERSION}")
    if not pops and trace.model.policy.extension is not None:
        raise NotOnJavaError(f"replay has no gates for {trace.model.policy.name}, only for pops and pulls")
    if pops and rechecks:
        raise UserError("--with-7359 changes the table of pulls: leave it out for a run of pops")
    if trace.model.policy.name not in ((SHIPPED,) if pops else presets_of(jars.version)):
        # The token's policy differs from the broker's, so the replay takes only steps that the broker's policy has too.
        from longpoll_simulation.refinement import named, under  # noqa: PLC0415 - as above

        policy = policy_from(SHIPPED) if pops else preset(presets_of(jars.version)[0])
        changed, cannot = under(policy, trace, UNSHIPPED if pops else ())
        if cannot is not None:
            said = f"{changed.model.policy.name} allows {changed.depth} steps: it has no action {named(cannot)} then"
            told = _told(token, name, "unknown", said, promised=promised, seen=[said])
            if not quiet:
                _tell(told | {"seen": []})
            return told
        trace = Trace(changed.model, changed.steps, trace.property_name)
    gates = POP_GATES if pops else breakpoints_of(jars.version, lmq=trace.model.policy.name == "rocketmq-lmq")
    schedule = pops_of(trace) if pops else with_after(schedule_of(trace, gates), shown_by(trace))
    err.print(f"starting the Java broker {jars.version}")
    # Ctrl-C and SIGTERM both end the started broker.
    with (
        interrupted_by_sigterm(),
        Breakpoints() as stage,
        started(jars, stage, lmq=schedule.lmq, slave=schedule.slave, rechecks=rechecks, pops=pops) as broker,
    ):
        played = play(broker, schedule)
    if not quiet:
        _tell_played(played, trace, gates, jars.version)
    scenes = story_of(trace).scenes
    return _told(
        token,
        name,
        "differs" if played.otherwise else "followed" if played.is_whole and not played.cannot else "unknown",
        "",
        steps=[
            {
                "action": scene.action,
                "specification": scene.sentence,
                "seen": list(seen.said),
                "at_ms": round(seen.at_ms, 1),
            }
            for scene, seen in zip(scenes, played.steps, strict=False)
        ],
        promised=promised,
        seen=[*filter(None, [played.otherwise, played.cannot]), *played.shown],
    )


def _tell_played(played: Played, trace: Trace, gates: Sequence[Breakpoint], version: str) -> None:
    """Print the verdict, each step next to the specification's, and the source locations that the steps mention."""
    if played.otherwise:
        out.tell(styled("[red]Java {} differs from the specification[/red]: {}", version, played.otherwise))
    elif played.cannot:
        made = f"{len(played.steps)} of {played.of} steps"
        out.tell(styled("[yellow]Java {} was followed for {}[/yellow]: {}", version, made, played.cannot))
    else:
        sentence = SENTENCES[trace.property_name] if played.broken and is_of_pops(trace.model.policy) else ""
        sentence = sentence or sentence_of(trace.property_name)
        broke = f", and violates {trace.property_name}: {sentence}" if played.broken else ""
        out.tell(styled("[green]Java {} follows the run to its end[/green], {} steps{}", version, played.of, broke))
    rows = [
        (place, f"{who(scene)} {scene.sentence}".strip(), "; ".join(seen.said), f"{seen.at_ms:,.0f}")
        for place, (scene, seen) in enumerate(zip(story_of(trace).scenes, played.steps, strict=False), 1)
    ]
    table("Step by step", ("step", "specification", "broker", "ms"), rows, right=("step", "ms"))
    mentioned = " ".join(words for seen in played.steps for words in seen.said).split()
    for gate in gates:
        if gate.name in mentioned:
            say(f"  {gate.name}: {gate.words}")
    for each in played.shown:
        say(f"  {each}")
