"""A read below the beginning of a queue returns the beginning, and the messages after it stay unread."""

from __future__ import annotations

import pytest

from longpoll_spec.bounds import named
from longpoll_spec.policy import PRESETS, Policy
from longpoll_spec.specification import specification_of
from longpoll_spec.terms import FALSE, TRUE, after, const, truth


@pytest.mark.parametrize("policy", PRESETS.values(), ids=PRESETS)
@pytest.mark.parametrize(("start", "unread"), [(1, True), (2, False)])
def test_a_read_below_the_beginning_skips_only_deleted_messages(policy: Policy, start: int, unread: bool) -> None:
    model = specification_of(policy, named("truncate", policy, requests=1, messages=2, tags=2))
    state = {
        **{each.name: truth(bool(each.initial)) if each.truth else const(each.initial) for each in model.variables},
        "visible_end": const(2),
        "visible_start": const(start),
        "passes_0": TRUE,
    }
    (read,) = model.named("pull_read")
    assert after(after(model.state.requests[0].passes, read.effect), state) is (TRUE if unread else FALSE)
