"""The lessons in their order. Leaves out what each asks (a module for each kind of answer), and the pages."""

from __future__ import annotations

from typing import Final

from longpoll.commands.lesson import deadlines, mutants, polls, races
from longpoll.commands.lesson.exercise import Lesson

LESSONS: Final = (
    Lesson(0, "broken-threads", "Broken threads", polls.POLLS),
    Lesson(1, "lost-by-hold", "A wakeup lost before the hold", races.HOLD),
    Lesson(2, "lost-by-keep", "A wakeup lost in a list", races.KEEP),
    Lesson(3, "late-by-a-scan", "Late by a scan", deadlines.LATE),
    Lesson(4, "lost-for-good", "Lost for good", races.FOR_GOOD),
    Lesson(12, "your-own-mutant", "Your own mutant", mutants.MUTANT),
)
