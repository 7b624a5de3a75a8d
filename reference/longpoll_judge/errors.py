"""Every exception of the judge, one class for each kind of error."""

from longpoll_spec.errors import LongpollError, UserError


class JudgeError(LongpollError):
    """The base class of errors that the judge's own code raises."""


class JudgeUserError(JudgeError, UserError):
    """A user's mistake, such as an impossible option. The message contains the next step."""


class HistoryNotFoundError(JudgeUserError):
    """A given path contains no history."""


class HistoryChangedError(JudgeUserError):
    """A part of a history changed while it was judged."""


class SparkUnavailableError(JudgeUserError):
    """Spark cannot start because Java 17 or later is missing."""


class ReportNotWrittenError(JudgeUserError):
    """The report cannot be written where the user wants it."""


class StreamNotReadableError(JudgeUserError):
    """The file to which findings should be appended does not contain findings."""
