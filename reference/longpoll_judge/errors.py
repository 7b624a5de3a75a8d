"""Every exception of the judge, one class a fault."""

from longpoll_spec.errors import LongpollError, UserError


class JudgeError(LongpollError):
    """Whatever the judge's own code raises on purpose."""


class JudgeUserError(JudgeError, UserError):
    """A user's mistake, such as an impossible option. The message contains the next step."""


class HistoryNotFoundError(JudgeUserError):
    """A named path holds no history."""


class HistoryChangedError(JudgeUserError):
    """A part of a history is not what it was, though it is still being judged."""


class SparkUnavailableError(JudgeUserError):
    """Spark cannot start because Java 17 or later is missing."""


class ReportNotWrittenError(JudgeUserError):
    """The report cannot be written where the user wants it."""


class StreamNotReadableError(JudgeUserError):
    """A file that findings are to be added to holds something else."""
