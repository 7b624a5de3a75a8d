"""The list of lessons. Their exercises are in `asked`, one module per kind of answer."""

from __future__ import annotations

from typing import Final

from longpoll.commands.lesson.exercise import Lesson
from longpoll.commands.lesson.exercises import (
    brokers,
    counts,
    deadlines,
    features,
    hold_tables,
    invariants,
    mutants,
    polls,
    races,
    recordings,
)

LESSONS: Final = (
    Lesson(0, "broken-threads", "Broken threads", polls.POLLS),
    Lesson(1, "lost-by-hold", "A wakeup lost before the hold", races.HOLD),
    Lesson(2, "lost-by-keep", "A wakeup lost in a list", races.KEEP),
    Lesson(3, "late-by-a-scan", "Late by a scan", deadlines.LATE),
    Lesson(4, "lost-for-good", "Lost for good", races.FOR_GOOD),
    Lesson(5, "filters-and-commits", "Filters and commits", features.FILTERS),
    Lesson(6, "prove-it", "Prove it", invariants.PROOF),
    Lesson(7, "any-number", "Any number", counts.ANY),
    Lesson(8, "fairness-and-time", "Fairness and time", counts.FAIR),
    Lesson(9, "judge-a-recording", "Judge a recording", recordings.RECORDED),
    Lesson(10, "the-real-broker", "The real broker", brokers.REPLAYED),
    Lesson(11, "write-your-own", "Write your own hold table", hold_tables.TABLES),
    Lesson(12, "your-own-mutant", "Your own mutant", mutants.MUTANT),
)
