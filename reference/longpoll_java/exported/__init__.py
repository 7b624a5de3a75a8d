"""Exports a schedule as files that need only Java and Maven, for maintainers who can fix the bug.

The rules, moves and settings are those of `play`; `Replay.java` plays the moves in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Final

from longpoll_java.broker import settings_of
from longpoll_java.byteman_rules import rules_of
from longpoll_java.jars import pom_of
from longpoll_java.schedule import Schedule
from longpoll_java.violations import sentence_of
from longpoll_spec.render.java_breakpoints import Breakpoint

_README: Final = """# {title}

On an unchanged Apache RocketMQ broker {version}: {shown}.

Byteman, a Java agent, stops the broker's threads at the locations in `gates.btm`. They continue in the order of
`schedule.txt`. Nothing else in the broker is changed.

## Run it

This needs a JDK (11 or later) and Maven, and ends within a minute.

```console
mvn -q -B dependency:build-classpath -Dmdep.outputFile=class-path.txt
java Replay.java
```

Exit code 0: the broker followed the run and shows the behaviour above. 1: the broker behaved differently. 3: a thread
did not reach its gate; `broker.out` has the broker's output.

## What happens

{steps}
## What is wrong

{wrong}
"""


def files_of(
    schedule: Schedule,
    gates: Sequence[Breakpoint],
    version: str,
    *,
    title: str,
    sentences: Sequence[str],
    wrong: Sequence[str],
) -> dict[str, str]:
    """Map the name of each file to its text. `sentences` describe the steps of the run, and `wrong` the violation."""
    steps = "".join(f"{number}. {sentence}\n" for number, sentence in enumerate(sentences, 1))
    conf = {"broker.conf": settings_of("{home}", "{port}", lmq=schedule.lmq)}
    if schedule.slave:
        conf = {"master.conf": conf["broker.conf"]}
        conf["broker.conf"] = settings_of("{home}", "{port}", lmq=schedule.lmq, copies="{master}")
    shown = sentence_of(schedule.property_name) or "it follows the run below, step by step"
    return {
        "README.md": _README.format(
            title=title, version=version, shown=shown, steps=steps, wrong="\n".join(wrong) or "Nothing: it is a run."
        ),
        "pom.xml": pom_of(version),
        **conf,
        "gates.btm": rules_of(gates),
        "schedule.txt": _schedule_text(schedule, title, sentences),
        "Replay.java": files("longpoll_java.exported").joinpath("Replay.java").read_text(encoding="utf-8"),
    }


def _schedule_text(schedule: Schedule, title: str, sentences: Sequence[str]) -> str:
    settings = {
        "queues": schedule.queues, "tick_ms": schedule.tick_ms, "hold_ms": schedule.hold_ms,
        "lmq": str(schedule.lmq).lower(),
    }  # fmt: skip
    lines = [f"# {title}", *(f"SET {name} {value}" for name, value in settings.items())]
    lines += ["BEFORE", *map(str, schedule.before), "STEPS"]
    for number, (step, sentence) in enumerate(zip(schedule.steps, sentences, strict=True), 1):
        lines += [f"step {number} {step.label}: {sentence}", *map(str, step.moves)]
        lines += [f"silent slot={slot}" for slot, is_open in enumerate(step.open) if is_open]
    lines += ["AFTER", *map(str, schedule.after)]
    return "\n".join(lines) + "\n"
