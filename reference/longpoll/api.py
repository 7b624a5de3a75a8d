"""The commands `check`, `prove`, `explain`, `judge` and `observe` as functions.

Each function returns the data that its command prints. z3, Arrow and Spark are imported on first use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from longpoll.extras import missing
from longpoll_spec.errors import UserError
from longpoll_spec.policy import STRICT, Policy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from longpoll_judge.contract.result import Result
    from longpoll_judge.evidence.survey import OwnProperty
    from longpoll_judge.run.spark.frames import FrameResult
    from longpoll_observe import Observer
    from longpoll_spec.engines.exploration import Exploration
    from longpoll_spec.engines.smt.proof import Proof


class ExtraMissingError(UserError):
    """The call needs an extra that is not installed; the text names the extra."""


@contextmanager
def needing(command: str = "") -> Iterator[None]:
    """Raise ExtraMissingError if an import in the block fails because an extra is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        said = missing(error, command)
        if said is None:
            raise
        raise ExtraMissingError(said) from error


def check(
    policy: str | Policy = STRICT,
    *,
    bounds: str = "tiny",
    properties: Iterable[str] = (),
    aspects: Iterable[str] = (),
    engine: str = "python",
    max_states: int | None = None,
) -> Exploration:
    """Explore every state that a policy reaches within bounds, and check its properties in each.

    Args:
        policy: A preset's name, optionally followed by `+KNOB=VALUE`, a specification file, or a `Policy`.
        bounds: The name of a size: tiny, small or wide.
        properties: Names of the properties to check. Default: all.
        aspects: Features to add to the model, such as `commits` or `crash`.
        engine: `python` has no dependencies; `packed` is fast and needs numpy.
        max_states: Most states to explore; a property that is not decided by then is `unknown`.

    Raises:
        UserError: A name is unknown, or the engine does not support the search.
    """
    from longpoll_spec.bounds import named  # noqa: PLC0415 - a slow import
    from longpoll_spec.engines import explore  # noqa: PLC0415
    from longpoll_spec.model import select  # noqa: PLC0415
    from longpoll_spec.specification import properties_of, specification_of  # noqa: PLC0415

    chosen = _policy(policy)
    model = specification_of(chosen, named(bounds, chosen, aspects=tuple(aspects)))
    with needing("check"):
        return explore(model, select(properties_of(model), properties), engine=engine, limit_states=max_states)


def prove(policy: str | Policy = STRICT, *, requests: int = 8, properties: Iterable[str] = ()) -> Proof:
    """Prove a policy's properties with z3, for any number of messages, timeout and scan period.

    Args:
        policy: A preset's name, optionally followed by `+KNOB=VALUE`, a specification file, or a `Policy`.
        requests: Number of concurrent requests.
        properties: Names of the properties to prove. Default: all.

    Raises:
        UserError: A name is unknown.
    """
    with needing():
        from longpoll_spec.engines.smt import proof  # noqa: PLC0415 - a slow import
    return proof.prove(_policy(policy), requests=requests, names=properties)


def _policy(policy: str | Policy) -> Policy:
    from longpoll_spec.custom import policy_from  # noqa: PLC0415 - a slow import

    return policy_from(policy) if isinstance(policy, str) else policy


def explain(token: str, file: str | None = None) -> str:
    """Return a counterexample as a readable sequence of steps; raises UserError for a damaged token.

    If the run belongs to a specification file, pass that file as `file`.
    """
    from longpoll_spec.engines.tokens import replay  # noqa: PLC0415 - a slow import
    from longpoll_spec.render.pictures.text import story_text  # noqa: PLC0415
    from longpoll_spec.render.story import story_of  # noqa: PLC0415

    return story_text(story_of(replay(token, None if file is None else _policy(file))))


@overload
def judge(
    *histories: str | Path | Sequence[str | Path],
    engine: Literal["local", "spark"] = "local",
    wake_ms: float | None = None,
    late_ms: float | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    session: SparkSession | None = None,
    properties: Sequence[OwnProperty] = (),
) -> Result: ...


@overload
def judge(
    frame: DataFrame,
    /,
    *,
    wake_ms: float | None = None,
    late_ms: float | None = None,
    conf: Mapping[str, str] | None = None,
    properties: Sequence[OwnProperty] = (),
) -> FrameResult: ...


def judge(
    *histories: str | Path | Sequence[str | Path] | DataFrame,
    engine: Literal["local", "spark"] = "local",
    wake_ms: float | None = None,
    late_ms: float | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    session: SparkSession | None = None,
    properties: Sequence[OwnProperty] = (),
) -> Result | FrameResult:
    """Judge recorded histories together, and report each violated property with its reason.

    A DataFrame is judged on its Spark session, but only when you first read the verdict or a table of the result.

    Args:
        histories: Directories or URIs of recorded histories, such as `s3a://bucket/history`, or a list of them; or one
            Spark DataFrame of events (docs/judge.md).
        engine: `local` judges in this process; `spark` uses Spark, for remote histories or those larger than memory.
        wake_ms: Longest time in ms from a message's arrival to the answer of a held pull. Default: the judge's limit.
        late_ms: Longest time in ms from a pull's deadline to its answer. Default: the judge's limit.
        master: The address of Spark, such as `spark://host:7077` or `sc://host:15002`.
        conf: More Spark settings by name.
        session: Your own Spark session, which stays open; implies the engine `spark`.
        properties: Your own checks. Each gets an Arrow table with one row per pull and returns pairs of a row number
            and a description of the violation (docs/judge.md).

    Raises:
        UserError: There is no history, or Spark cannot start.
    """
    with needing("judge"):
        from longpoll_judge.run import pipeline  # noqa: PLC0415 - a slow import
    frames: list[Any] = [each for each in histories if hasattr(each, "mapInArrow")]
    if frames and len(histories) > 1:
        raise UserError("judge one DataFrame at a time: join several with df.unionByName(other)")
    for each in histories:
        if not (frames or isinstance(each, str | Path | Sequence)):
            kind = f"{type(each).__module__.partition('.')[0]} {type(each).__name__}"
            raise UserError(f"a history is a directory, a URI or a Spark DataFrame, not a {kind}")
    each_place: Any = () if frames else histories
    places = [place for each in each_place for place in ([each] if isinstance(each, str | Path) else each)]
    with needing("judge"):
        judge_it = partial(
            pipeline.judge,
            engine="local" if engine == "local" and session is None and not frames else "spark",
            master=master,
            conf=conf,
            session=frames[0].sparkSession if frames else session,
            wake_ms=pipeline.WAKE_MS if wake_ms is None else wake_ms,
            late_ms=pipeline.LATE_MS if late_ms is None else late_ms,
            properties=properties,
        )
        if not frames:
            return judge_it(places)
        from longpoll_judge.run.spark.frames import FrameResult  # noqa: PLC0415 - Spark takes a second to import

        return FrameResult(frames[0], conf or {}, judge_it)


def observe(*brokers: str, record: str | Path, name_server: str | None = None, listen: str = "127.0.0.1:0") -> Observer:
    """Start a proxy in front of running brokers that records a history; returns a running context manager.

    Args:
        brokers: The brokers' addresses, HOST:PORT; `doors` maps each to its address at the proxy.
        record: The directory of the history; an existing history is continued.
        name_server: The name server whose routes the proxy rewrites.
        listen: The proxy's address for the first broker; the addresses of other brokers get free ports.

    Raises:
        UserError: No broker is given, or an address is invalid or in use.
    """
    from longpoll.options.values import address_of  # noqa: PLC0415
    from longpoll_observe import Observer  # noqa: PLC0415 - only this call needs the proxy
    from longpoll_runtime.real import RealRuntime  # noqa: PLC0415

    return Observer.start(
        RealRuntime(),
        brokers=[address_of(each) for each in brokers],
        record_directory=str(Path(record).absolute()),
        name_server=None if name_server is None else address_of(name_server),
        listen=address_of(listen),
    )
