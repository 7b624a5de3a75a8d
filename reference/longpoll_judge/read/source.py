"""Finds histories, which are directories of parts with a `meta.json`, and cuts them into splits.

A split is a range of one part, and each split can be read separately. A split has the lines of an NDJSON part that
begin in a byte range, row groups of a Parquet part, or a whole compressed part. Both engines read with this module, so
they see the same events and the same damage. `ndjson` and `parquet` read the two kinds of parts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from json import JSONDecoder
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from attrs import frozen
from numpy.typing import NDArray

from longpoll_judge.errors import HistoryNotFoundError
from longpoll_judge.read import files, ndjson, parquet
from longpoll_judge.read.files import Entry, Stamp, first_line
from longpoll_judge.read.schema import EVENT_SCHEMA, INTEGER_LIMIT, Damage, coded, compute
from longpoll_spec.history import (
    FORMAT_VERSION,
    META_FILE,
    NDJSON_SUFFIX,
    PARQUET_SUFFIX,
    PART_FILES,
    PART_SUFFIXES,
    Law,
    Meta,
    Source,
)
from longpoll_spec.tables import with_table

Read = TypeVar("Read")
MONOTONIC: Final = "monotonic"
"""The name of the clock that cannot be set."""
SPLIT_BYTES: Final = 8 << 20
"""The number of bytes of an NDJSON part that are read at once."""
_BELOW: Final = (
    "nothing is read, and of no part in a directory of a history's: write a table without partitions, its files named "
    f"{PART_FILES} beside {META_FILE}, and name a history within another one by itself"
)

RowGroups = dict[tuple[str, Stamp], int]
"""The number of row groups of each Parquet part that has not changed since it was read."""


@with_table
class InputSplit(msgspec.Struct, frozen=True, order=True):
    """A range [start, end) of one part, and the clocks of its sources."""

    path: str
    start: int
    """A byte position in an NDJSON part, or a row group of a Parquet part. A compressed part is a single split."""
    end: int
    rename: dict[str, str]
    """Maps a source's name in the file to its new name, if several directories use the name for different sources."""
    clocks: dict[str, tuple[int, int]]
    """The clock of each source, by its name in the file: (offset_ns, uncertainty_ns)."""


@frozen
class History:
    """The parts found under some paths, before any event is read."""

    splits: list[InputSplit]
    damages: list[Damage]
    """Meta files that are missing, damaged or in an unknown format."""
    declared_sources: frozenset[str]
    settable_clocks: frozenset[str]
    """Sources whose clock may be set: their `clock` is not `monotonic`."""
    policies: frozenset[str]
    laws: dict[str, tuple[str, Law]]
    """For each source, the policy and the specification that its history declares."""
    hold_limits: dict[str, int]
    """For each source, the maximum number of pulls that the source's broker promises to hold at once."""
    sources: dict[str, Source]
    """The declaration of each source, by name."""
    policy_of: dict[str, str]
    """For each source, the policy of its broker, if known."""


def find(places: Iterable[Path | str], known: RowGroups | None = None) -> History:
    """Find the histories in directories, by path or URI.

    Args:
        places: The directories.
        known: The numbers of row groups in Parquet parts that were read before; new parts are added to it.

    Raises `HistoryNotFoundError` for a place without a history.
    """
    known = {} if known is None else known
    directories = sorted({files.absolute(place) for place in places})
    damages: list[Damage] = []
    metas: dict[str, Meta | None] = {}
    for directory in directories:
        _check_is_history(directory)
        metas[directory] = _read_meta(directory, damages)
    splits: list[InputSplit] = []
    declared: set[str] = set()
    settable: set[str] = set()
    laws: dict[str, tuple[str, Law]] = {}
    hold_limits: dict[str, int] = {}
    known_sources: dict[str, Source] = {}
    policy_of: dict[str, str] = {}
    for number, directory in enumerate(directories):
        meta = metas[directory]
        if meta is not None and meta.format_version != FORMAT_VERSION:
            continue
        names = [source.name for source in meta.sources] if meta else []
        others = {
            source.name for other, known in metas.items() if other != directory and known for source in known.sources
        }
        # A source that no meta file in its own directory declares is a different source from one of the same name that
        # another directory declares.
        rename = {name: f"{name}#{number}" for name in others}
        declared |= {rename.get(name, name) for name in names}
        sources = meta.sources if meta else []
        known_sources |= {rename.get(source.name, source.name): source for source in sources}
        if meta is not None and meta.policy:
            policy_of |= {rename.get(name, name): meta.policy for name in names}
        settable |= {rename.get(source.name, source.name) for source in sources if source.clock != MONOTONIC}
        declaring = [source for source in meta.sources if source.hold_limit >= 0] if meta else []
        hold_limits |= {rename.get(source.name, source.name): source.hold_limit for source in declaring}
        if meta is not None and meta.law is not None:
            laws |= {rename.get(name, name): (meta.policy, meta.law) for name in names}
        clocks = {source.name: (source.offset_ns, source.uncertainty_ns) for source in meta.sources} if meta else {}
        below = _unread_below(directory)
        damages += [below] if below else []
        for part in files.entries(directory, PART_FILES):
            splits += _cut(part, rename, clocks, damages, known)
    policies = frozenset(meta.policy for meta in metas.values() if meta and meta.policy)
    return History(
        splits=splits,
        damages=damages,
        declared_sources=frozenset(declared),
        settable_clocks=frozenset(settable),
        policies=policies,
        laws=laws,
        hold_limits=hold_limits,
        sources=known_sources,
        policy_of=policy_of,
    )


def _check_is_history(directory: str) -> None:
    if not files.is_directory(directory):
        raise HistoryNotFoundError(
            f"{directory} is not a directory; name a history that `observe --record` or `serve --record` wrote"
        )
    if files.entry(_meta_in(directory)) is None and not files.entries(directory, PART_FILES):
        below = _unread_below(directory)
        more = f", and of {below.file} {below.reason}" if below else ""
        raise HistoryNotFoundError(f"{directory} has no history: neither {META_FILE} nor {PART_FILES} is in it{more}")


def _meta_in(directory: str) -> str:
    """Returns the path of the meta file.

    The file may also be named with a leading underscore, because Spark reads every other file as Parquet.
    """
    hidden = files.beside(directory, f"_{META_FILE}")
    return hidden if files.entry(hidden) is not None else files.beside(directory, META_FILE)


def _unread_below(directory: str) -> Damage | None:
    """Returns the damage if a history has data in subdirectories, as a partitioned table has; else None.

    Part of each event is then in the names of the subdirectories, so the files have no complete events. A failed search
    is damage too.
    """
    try:
        found = files.first_within(directory, PART_SUFFIXES, META_FILE)
    except OSError as error:
        return Damage(str(error.filename or directory), -1, f"cannot be accessed ({error.strerror or error})")
    return Damage(found, -1, _BELOW) if found is not None else None


def _read_meta(directory: str, damages: list[Damage]) -> Meta | None:
    file = _meta_in(directory)
    found = files.entry(file)
    if found is not None and not found.is_file:
        damages.append(Damage(file, -1, "it is no file: the sources' clocks are unknown"))
        return None
    try:
        content = files.read(file).removeprefix(files.BOM)
        meta = msgspec.json.decode(content, type=Meta)
        _OBJECTS(content.decode())
    except FileNotFoundError:
        damages.append(Damage(file, -1, "missing: the sources' clocks are unknown"))
        return None
    except (msgspec.DecodeError, UnicodeDecodeError, OSError, RecursionError) as error:
        damages.append(Damage(file, -1, f"cannot be read ({error}): the sources' clocks are unknown"))
        return None
    wrong = next((text for source in meta.sources for text in _odd_declaration(source, meta)), None)
    if wrong is not None:
        damages.append(Damage(file, -1, f"{wrong}: the clocks are unknown, and no promise is known"))
        return None
    if meta.format_version != FORMAT_VERSION:
        text = f"format {meta.format_version} is not the one read here, {FORMAT_VERSION}: the directory is left unread"
        damages.append(Damage(file, -1, text))
    return meta


def _each_once(pairs: list[tuple[str, Any]]) -> None:
    """Raise a msgspec error if an object names a field twice, because the field's value is then ambiguous."""
    names = [name for name, _value in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise msgspec.ValidationError(f"{twice!r} occurs twice in one object")


_OBJECTS: Final = JSONDecoder(object_pairs_hook=_each_once, parse_int=str, parse_float=str).decode


def _odd_declaration(source: Source, meta: Meta) -> Iterator[str]:
    if any(other != source for other in meta.sources if other.name == source.name):
        yield f"source {source.name!r} is declared more than once, and not alike"
    if abs(source.offset_ns) >= INTEGER_LIMIT:
        yield f"offset_ns of source {source.name!r} is {source.offset_ns}, which is out of range"
    if not 0 <= source.uncertainty_ns < INTEGER_LIMIT:
        yield f"uncertainty_ns of source {source.name!r} is {source.uncertainty_ns}, which is no width"
    if not -1 <= source.hold_limit < INTEGER_LIMIT:
        yield f"hold_limit of source {source.name!r} is {source.hold_limit}, which is no number of pulls"


def _cut(
    part: Entry,
    rename: dict[str, str],
    clocks: dict[str, tuple[int, int]],
    damages: list[Damage],
    known: RowGroups,
) -> list[InputSplit]:
    """Returns the splits of one part; an unreadable part is added to `damages`."""
    kind = kind_of(part.path)
    if kind not in PART_SUFFIXES:
        damages.append(Damage(part.path, -1, f"no kind of part that is read here ({', '.join(PART_SUFFIXES)})"))
        return []
    if not part.is_file:
        damages.append(Damage(part.path, -1, "it is named like a part and is no file: nothing of it is read"))
        return []
    if kind == PARQUET_SUFFIX:
        step, end = 1, _row_groups(part, damages, known)
    else:
        end = part.size
        step = SPLIT_BYTES if kind == NDJSON_SUFFIX else max(end, 1)
    return [InputSplit(part.path, start, min(start + step, end), rename, clocks) for start in range(0, end, step)]


def _row_groups(part: Entry, damages: list[Damage], known: RowGroups) -> int:
    """Returns the number of row groups of a part. An unreadable part is opened again each time."""
    if (part.path, part.stamp) in known:
        return known[part.path, part.stamp]
    count = parquet.row_group_count(part.path, damages)
    if count:
        known[part.path, part.stamp] = count
    return count


def kind_of(path: str) -> str:
    """Returns the suffix of the part's name that is in `PART_SUFFIXES`; empty if the name has no such suffix."""
    return next((suffix for suffix in PART_SUFFIXES if files.name_of(path).endswith(suffix)), "")


def is_cheap(part: InputSplit) -> bool:
    """Whether reading some columns of the split costs less than reading all columns."""
    return kind_of(part.path) == PARQUET_SUFFIX


def read_split(
    part: InputSplit, columns: Sequence[str] | None = None, *, sparse: bool = False
) -> tuple[pa.Table, list[Damage]]:
    """Returns the events of the split on the common clock (columns of `EVENT_SCHEMA`), and what could not be read.

    If `columns` is given, other columns may have their defaults. If `sparse` is true, a column whose values are all
    defaults may be absent.
    """
    try:
        table, damages = _read_part(part, columns, sparse=sparse)
    except OSError as error:
        table = EVENT_SCHEMA.empty_table()
        damages = [Damage(part.path, part.start, f"cannot be read: {error.strerror or first_line(error)}")]
    return _align(table, part), damages


def _read_part(part: InputSplit, columns: Sequence[str] | None, *, sparse: bool) -> tuple[pa.Table, list[Damage]]:
    kind = kind_of(part.path)
    if kind == PARQUET_SUFFIX:
        return parquet.read_row_groups(part.path, part.start, part.end, columns, sparse=sparse)
    if kind == NDJSON_SUFFIX:
        return ndjson.read_range(part.path, part.start, part.end)
    return ndjson.read_compressed(part.path)


def _align(table: pa.Table, part: InputSplit) -> pa.Table:
    """Convert events to the common clock, widen them by their clock's uncertainty, and give sources unique names."""
    if not len(table) or not (part.clocks or part.rename):
        return table
    codes, names = coded(table, "source")
    clocks = np.array([part.clocks.get(name, (0, 0)) for name in names], dtype=np.int64)
    # A split usually has one source, so its clock offset is one number instead of a column.
    offset_ns, uncertainty_ns = clocks[0] if len(names) == 1 else (clocks[codes, 0], clocks[codes, 1])
    renamed = pa.array([part.rename.get(name, name) for name in names], pa.string())
    columns = {"source": pa.DictionaryArray.from_arrays(codes, renamed)}
    # A clock inside the broker is usually the common clock, so the timestamps stay unchanged.
    if clocks.any():
        columns["after_ns"] = _moved(table["after_ns"].to_numpy(), offset_ns - uncertainty_ns)
        columns["before_ns"] = _moved(table["before_ns"].to_numpy(), offset_ns + uncertainty_ns)
    for name, values in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, values)
    return table


def _moved(moment_ns: NDArray[np.int64], shift_ns: Any) -> pa.Array:
    """Returns the times on the common clock; times outside its range are set to its limits."""
    moved = moment_ns + shift_ns
    limit = INTEGER_LIMIT - 1
    # Finding the extremes costs a third of clipping, and recorded times are usually in range.
    if len(moved) and (moved.min() < -limit or moved.max() > limit):
        moved = np.clip(moved, -limit, limit)
    return pa.array(moved)


def events_by_source(
    history: History, sources: Iterable[str], columns: Sequence[str], names: Iterable[str]
) -> dict[str, list[dict[str, Any]]]:
    """Returns, by source, the events of `sources` whose event name is in `names`."""
    found: dict[str, list[dict[str, Any]]] = {source: [] for source in sources}
    wanted, kinds = pa.array(found, pa.string()), pa.array(names, pa.string())
    for part in history.splits:
        if {part.rename.get(name, name) for name in part.clocks} & found.keys():
            table, _damages = read_split(part, columns)
            is_wanted = compute.and_(
                compute.is_in(table["source"].cast(pa.string()), value_set=wanted),
                compute.is_in(table["event"].cast(pa.string()), value_set=kinds),
            )
            for event in table.select(columns).filter(is_wanted).to_pylist():
                found[event["source"]].append(event)
    return found


def read_ahead(
    splits: Sequence[InputSplit], read: Callable[[InputSplit], Read], threads: int, most: int
) -> Iterator[tuple[InputSplit, Read]]:
    """Yields each split in order with the result of `read`; at most `most` splits are read in advance."""
    waiting: deque[tuple[InputSplit, Future[Read]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for part in splits:
            waiting.append((part, pool.submit(read, part)))
            if len(waiting) > most:
                first, coming = waiting.popleft()
                yield first, coming.result()
        while waiting:
            first, coming = waiting.popleft()
            yield first, coming.result()
