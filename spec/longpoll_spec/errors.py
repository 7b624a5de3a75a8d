"""What every exception of the project is, and those of the law, one class a fault.

Leaves out control flow: nothing here is raised to be caught by the package itself. The other packages' own exceptions
stand in their `errors`.
"""


class LongpollError(Exception):
    """Whatever any package of the project raises on purpose."""


class UserError(LongpollError):
    """The user asked for something that does not exist or cannot be; the text says what to do next."""


class ConfigError(UserError):
    """A configuration file or option cannot be used."""


class SpecError(LongpollError):
    """Whatever the law's own code raises on purpose."""


class SpecUserError(SpecError, UserError):
    """The user asked the law for something that does not exist or cannot be; the text says what to do next."""


class UnknownPolicyError(SpecUserError):
    """No preset has this name."""


class UnknownKnobError(SpecUserError):
    """No knob has this name, or the knob does not take this value."""


class UnknownPropertyError(SpecUserError):
    """No property has this name."""


class UnknownWorldError(SpecUserError):
    """No world of a proof has this name."""


class UnknownEngineError(SpecUserError):
    """No engine has this name."""


class BoundsError(SpecUserError):
    """These bounds cannot be explored: one is out of range, or they do not fit the engine's packed words."""


class SymmetryError(SpecUserError):
    """Requests are not interchangeable in what is to be checked."""


class EngineLimitError(SpecUserError):
    """The engine cannot do what is asked: an option it lacks, memory it may not use, a worker that is gone."""


class MemoryShortError(EngineLimitError):
    """There is too little memory or disk for this search, or a process was ended for want of it."""


class CheckpointError(SpecUserError):
    """The directory of a search is missing, damaged, of another search, or cannot be written."""


class SparkFailedError(SpecUserError):
    """Spark could not do a step of a search."""


class TokenError(SpecUserError):
    """A counterexample token is damaged, from another version, or does not replay."""


class HistoryFormatError(SpecUserError):
    """A history is of another format version, or its meta file is missing or damaged."""


class OutputError(SpecUserError):
    """What was to be shown cannot be written where the user wants it."""
