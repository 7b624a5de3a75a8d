"""Prints Storm's facts about a JANI file as JSON; runs in the separate Python that has `stormpy`.

    python storm_facts.py FILE

prints `states`, `choices`, `deadlocks` and `verdicts` (property to Storm's result). Expected values: `test_storm`.
"""

from __future__ import annotations

import json
import sys

import stormpy  # type: ignore[import-not-found]


def main(path: str) -> None:
    """Print the facts of a file."""
    program, properties = stormpy.parse_jani_model(path)
    model = stormpy.build_model[float](program, properties)
    (first,) = model.initial_states
    found = {
        item.get_name(): stormpy.model_checking(model, item).get_truth_values_vector()[first] for item in properties
    }
    facts = {
        "states": model.nr_states,
        "choices": model.nr_choices,
        "deadlocks": model.labeling.get_states("deadlock").get_number_of_set_bits(),
        "verdicts": found,
    }
    sys.stdout.write(f"{json.dumps(facts)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
