"""One state as readable lines, for a counterexample to induction.

Variables with their first value are left out, so that the unusual ones show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from longpoll_spec.model import Model


def render(model: Model, state: Sequence[int], parameters: Mapping[str, int] | None = None) -> str:
    """The state, one line for the broker and one for each request that differs from the first state."""
    shown: dict[str, list[str]] = {}
    for variable, value in zip(model.variables, state, strict=True):
        name, _, slot = variable.name.rpartition("_")
        of_request = slot.isdecimal()
        if value != variable.initial or not of_request:
            text = str(value) if variable.labels and not 0 <= value < len(variable.labels) else variable.show(value)
            shown.setdefault(f"request {slot}" if of_request else "broker", []).append(
                f"{name if of_request else variable.name} {text}"
            )
    lines = [f"{who}: {', '.join(parts)}" for who, parts in shown.items()]
    if parameters:
        lines.append("parameters: " + ", ".join(f"{name} {value}" for name, value in parameters.items()))
    return "\n".join(lines)
