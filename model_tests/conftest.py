"""What every test shares: Hypothesis settings profiles.

`quick` (the default) keeps `make test` under five minutes; `long` is what `make test-long` sets by
LONGPOLL_PROFILE=long. Deadlines are off in both: a shared machine stalls, and a stall is not a fault.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "quick",
    deadline=None,
    max_examples=60,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile(
    "long",
    parent=settings.get_profile("quick"),
    max_examples=2_000,
    stateful_step_count=80,
)
settings.load_profile(os.environ.get("LONGPOLL_PROFILE", "quick"))
