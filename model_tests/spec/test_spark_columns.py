"""The law as Spark columns means what the law means: guards, effects and steps, on states from random runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from longpoll_judge.run.spark.engine import SparkEngine
from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.evaluate import evaluate, values_of
from longpoll_spec.engines.python.compile import Packed, successors
from longpoll_spec.engines.spark.columns import effect_columns, guard_column, legal_step, state_ddl
from longpoll_spec.law import law_of
from longpoll_spec.model import Model
from longpoll_spec.policy import preset

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.fixture
def session(spark_engine: SparkEngine) -> SparkSession:
    """The one session of the whole run."""
    return spark_engine.session


def _model() -> Model:
    return law_of(preset("strict-clone"), Bounds("two", requests=2, messages=2, queues=2))


def _run(model: Model, seed: int, steps: int) -> list[Packed]:
    step, random, states = successors(model), Random(seed), [model.initial]
    while len(states) < steps and (following := step(states[-1])):
        states.append(random.choice(following)[1])
    return states


def _row(model: Model, state: Packed) -> tuple[int | bool, ...]:
    return tuple(bool(value) if each.truth else value for each, value in zip(model.variables, state, strict=True))


def _frame(session: SparkSession, path: Path, ddl: str, rows: Sequence[tuple[int | bool, ...]]) -> DataFrame:
    """Rows as a DataFrame, by way of a file: PySpark's sockets are left to the garbage collector."""
    names = [column.split()[0] for column in ddl.split(", ")]
    kinds = [pa.bool_() if column.endswith("boolean") else pa.int32() for column in ddl.split(", ")]
    columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    path.mkdir()
    pq.write_table(pa.Table.from_arrays(columns, names), path / "part-0.parquet")
    return session.read.schema(ddl).parquet(str(path)).coalesce(1)


def _rows(frame: DataFrame, path: Path) -> list[dict[str, Any]]:
    """A DataFrame's rows, in their order."""
    frame.write.parquet(str(path))
    rows: list[dict[str, Any]] = ds.dataset(sorted(map(str, path.glob("*.parquet")))).to_table().to_pylist()
    return rows


@pytest.mark.long
def test_guards_and_effects_mean_the_same(session: SparkSession, tmp_path: Path) -> None:
    """Every action's guard, and its effect where it is enabled, come out as a plain walk over the term says."""
    model = _model()
    states = [state for seed in range(5) for state in _run(model, seed, 25)]
    frame = _frame(session, tmp_path / "states", state_ddl(model), [_row(model, state) for state in states])
    columns = {f"guard {action.label}": guard_column(action) for action in model.actions}
    for action in model.actions:
        columns |= {f"{action.label} {name}": value for name, value in effect_columns(action).items()}
    rows = _rows(frame.select(*(column.alias(name) for name, column in columns.items())), tmp_path / "told")

    for state, row in zip(states, rows, strict=True):
        values = values_of(model, state)
        for action in model.actions:
            assert row[f"guard {action.label}"] == bool(evaluate(action.guard, values))
            if row[f"guard {action.label}"]:
                after = {name: evaluate(term, values) for name, term in action.effect.items()}
                assert after == {name: int(row[f"{action.label} {name}"]) for name in after}


@pytest.mark.long
def test_legal_steps_are_told_from_others(session: SparkSession, tmp_path: Path) -> None:
    """Steps of runs are legal; the same steps with one variable changed, or skipping a state, are as the law says."""
    model = _model()
    step = successors(model)
    runs = [_run(model, seed, 20) for seed in range(6)]
    pairs = [pair for run in runs for pair in pairwise(run)] + [(run[0], run[-1]) for run in runs]
    pairs += [(before, (*after[:-1], 1 - min(after[-1], 1))) for before, after in pairs[:40]]
    ddl = f"{state_ddl(model, 'before_')}, {state_ddl(model, 'after_')}"
    frame = _frame(
        session, tmp_path / "steps", ddl, [(*_row(model, before), *_row(model, after)) for before, after in pairs]
    )
    told = [row["is_legal"] for row in _rows(frame.select(legal_step(model).alias("is_legal")), tmp_path / "told")]
    meant = [after in [following for _, following in step(before)] for before, after in pairs]

    assert told == meant
    assert set(told) == {True, False}
