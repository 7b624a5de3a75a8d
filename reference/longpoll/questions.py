"""What one asks of a policy, of a counterexample and of a history, as functions.

Each gives back what the command of its name shows. What is heavy (z3, Arrow, Spark) is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from longpoll.extras import missing
from longpoll_spec.errors import UserError
from longpoll_spec.policy import STRICT, Policy, policy_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from longpoll_judge.contract.result import Result
    from longpoll_observe import Observer
    from longpoll_spec.engines.exploration import Exploration
    from longpoll_spec.engines.smt.proof import Proof


class ExtraMissingError(UserError):
    """What was asked needs an extra that is not installed; the text names it."""


@contextmanager
def needing(command: str = "") -> Iterator[None]:
    """Say of an import that fails in the block which extra brings what it missed; raises ExtraMissingError."""
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
    """Explore every state that a policy reaches under bounds, and judge its properties in all of them.

    Args:
        policy: A preset's name, which may go on with `+KNOB=VALUE`, or a policy of your own.
        bounds: A size's name: tiny, small, wide.
        properties: Names of those to be judged; all of the law's for none.
        aspects: What the world has besides, such as `commits` or `crash`.
        engine: `python` needs nothing else; `packed` is fast and needs numpy.
        max_states: Where the search gives up; what is not decided by then is `unknown`.

    Raises:
        UserError: one of these names is not known, or the engine cannot do this.
    """
    from longpoll_spec.bounds import named  # noqa: PLC0415 - the law takes its time to import
    from longpoll_spec.engines import explore  # noqa: PLC0415
    from longpoll_spec.law import law_of, properties_of  # noqa: PLC0415
    from longpoll_spec.model import select  # noqa: PLC0415

    chosen = policy_of(policy)
    model = law_of(chosen, named(bounds, chosen, aspects=tuple(aspects)))
    with needing("check"):
        return explore(model, select(properties_of(model), properties), engine=engine, limit_states=max_states)


def prove(policy: str | Policy = STRICT, *, requests: int = 8, properties: Iterable[str] = ()) -> Proof:
    """Prove a policy's properties with z3: for any number of messages, and every timeout and scan period.

    Args:
        policy: A preset's name, which may go on with `+KNOB=VALUE`, or a policy of your own.
        requests: For how many requests at once.
        properties: Names of those to be proved; all of the law's for none.

    Raises:
        UserError: one of these names is not known.
    """
    with needing():
        from longpoll_spec.engines.smt import proof  # noqa: PLC0415 - z3 takes its time to import
    return proof.prove(policy_of(policy), requests=requests, names=properties)


def explain(token: str) -> str:
    """A counterexample's run as a sequence that a person can read; raises UserError for a damaged token."""
    from longpoll_spec.engines.tokens import replay  # noqa: PLC0415 - the law takes its time to import
    from longpoll_spec.render.pictures import text  # noqa: PLC0415
    from longpoll_spec.render.story.story import story_of  # noqa: PLC0415

    return text.render(story_of(replay(token)))


def judge(
    *histories: str | Path,
    engine: Literal["local", "spark"] = "local",
    wake_ms: float | None = None,
    late_ms: float | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    session: SparkSession | None = None,
    properties: Sequence[Callable[[Any], Iterable[tuple[int, str]]]] = (),
) -> Result:
    """Whether recorded histories, taken as one, are those of a broker that keeps its promises, and why not.

    Args:
        histories: Directories of recorded histories, or URIs of such, as `s3a://bucket/history`.
        engine: `local` judges in this process; `spark` on Spark, for what is larger than memory or lies elsewhere.
        wake_ms: How long a held pull may take to be answered after a message came; None takes the usual.
        late_ms: How long after its deadline one may be answered; None takes the usual.
        master: Where Spark runs, such as `spark://host:7077` or `sc://host:15002`.
        conf: Further settings of Spark, by its names.
        session: A Spark session that you have, which stays open; with it the engine is `spark`.
        properties: Functions of your own: each gets an Arrow table with a row a pull, and returns pairs of a row's
            number and what is wrong with it (docs/judge.md).

    Raises:
        UserError: there is no history, or Spark cannot start.
    """
    with needing("judge"):
        from longpoll_judge.run import job  # noqa: PLC0415 - Arrow takes its time to import
    with needing("judge"):
        return job.judge(
            histories,
            engine="local" if engine == "local" and session is None else "spark",
            master=master,
            conf=conf,
            session=session,
            wake_ms=job.WAKE_MS if wake_ms is None else wake_ms,
            late_ms=job.LATE_MS if late_ms is None else late_ms,
            properties=properties,
        )


def observe(*brokers: str, record: str | Path, name_server: str | None = None, listen: str = "127.0.0.1:0") -> Observer:
    """A proxy before running brokers, which records a history of what it sees; a context manager that is running.

    Args:
        brokers: Brokers to stand before, as HOST:PORT; `doors` says where each is reached now.
        record: A directory for the history; one that has some is added to.
        name_server: Whose routes are to lead to the proxy.
        listen: Where the first broker's door is; the others get ports of their own.

    Raises:
        UserError: nothing is to be observed, or an address is none or taken.
    """
    from longpoll.addresses import address_of  # noqa: PLC0415
    from longpoll_observe import Observer  # noqa: PLC0415 - not everybody needs the proxy
    from longpoll_runtime.real import RealRuntime  # noqa: PLC0415

    return Observer.start(
        RealRuntime(),
        brokers=[address_of(each) for each in brokers],
        record_directory=str(Path(record).absolute()),
        name_server=None if name_server is None else address_of(name_server),
        listen=address_of(listen),
    )
