"""Hypothesis strategies for commands, frames and chunks of a stream."""

from __future__ import annotations

from hypothesis import strategies as st

from longpoll_protocol.codes import LANGUAGES
from longpoll_protocol.frames import Command, Serialisation

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
# Any text that can be encoded; a lone surrogate cannot.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
filled_texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


@st.composite
def commands(draw: st.DrawFn, serialisation: Serialisation | None = None) -> Command:
    """Draws commands that equal their decoded encoding; the ROCKETMQ encoding decodes an empty text as None."""
    kind = draw(st.sampled_from(Serialisation)) if serialisation is None else serialisation
    is_json = kind is Serialisation.JSON
    word = int32 if is_json else st.integers(-(2**15), 2**15 - 1)
    some_text = texts if is_json else filled_texts
    return Command(
        code=draw(word),
        opaque=draw(int32),
        flag=draw(int32),
        ext_fields=draw(st.none() | st.dictionaries(some_text, some_text, min_size=0 if is_json else 1, max_size=20)),
        body=draw(st.binary(max_size=300)),
        remark=draw(st.none() | some_text),
        language=draw(texts) if is_json else draw(st.sampled_from(LANGUAGES)),
        version=draw(word),
        serialisation=kind,
    )


@st.composite
def chunkings(draw: st.DrawFn, stream: bytes) -> list[bytes]:
    """Draws splits of the stream into chunks of any size, including empty ones."""
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=30)))
    return [stream[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
