"""Tokens: a run of the specification as one short, URL-safe string, which every engine can replay.

| part                    | content                                                                              |
|-------------------------|--------------------------------------------------------------------------------------|
| `lp1.`                  | the format's version                                                                 |
| base64url, unpadded, of | MessagePack [preset or file, [knob settings], [requests, messages or -1, hold_ticks, |
|                         | scan_ticks], property, fingerprint, action indices, queues, tags, [aspects]], then   |
|                         | its CRC-32, big-endian; defaults of the last three: 1, 1, []                      |

The fingerprint is a CRC-32 of the names of the model's variables and actions, so that a token of another specification
is rejected instead of misread. `replay` turns a token into a trace, which the package `render` prints.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

import msgspec
from attrs import frozen

from longpoll_spec.bounds import Bounds
from longpoll_spec.custom import policy_from
from longpoll_spec.engines.evaluate import trace_of
from longpoll_spec.errors import SpecUserError, TokenError
from longpoll_spec.model import Action, Model, Trace
from longpoll_spec.policy import PRESETS, STRICT, Policy, knob_values, with_knob
from longpoll_spec.specification import specification_of
from longpoll_spec.tables import with_table

PREFIX: Final = "lp1."
LENGTH_MAX: Final = 4096
"""The length of the longest accepted token, in characters. The limit makes hostile input cheap to reject."""
CRC_BYTES: Final = 4
PLAIN_FIELDS: Final = 6
"""The number of fields in a token without queues, tags and features; older versions wrote only these fields."""


@with_table
class _Payload(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    preset: str
    knobs: list[str]
    bounds: tuple[int, int, int, int]
    property_name: str
    fingerprint: int
    actions: list[int]
    queues: int = 1
    tags: int = 1
    aspects: list[str] = []


@frozen
class Token:
    """The content of a token."""

    policy: Policy
    bounds: Bounds
    property_name: str
    fingerprint: int
    actions: tuple[int, ...]
    """The steps of the run, as indices into `Model.actions`."""


def fingerprint_of(model: Model) -> int:
    """The CRC-32 of the names of a model's variables and actions."""
    names = [variable.name for variable in model.variables] + [action.label for action in model.actions]
    return zlib.crc32("\n".join(names).encode())


def token_of(model: Model, actions: Sequence[Action], property_name: str = "") -> str:
    """The token of a run of the model from its first state."""
    index = {action.label: number for number, action in enumerate(model.actions)}
    base, knobs = _settings(model.policy)
    bounds = model.bounds
    messages = -1 if bounds.messages is None else bounds.messages
    payload = _Payload(
        preset=base,
        knobs=knobs,
        bounds=(bounds.requests, messages, bounds.hold_ticks, bounds.scan_ticks),
        property_name=property_name,
        fingerprint=fingerprint_of(model),
        actions=[index[action.label] for action in actions],
        queues=bounds.queues,
        tags=bounds.tags,
        aspects=sorted(bounds.aspects),
    )
    fields = msgspec.structs.astuple(payload)
    plain = (bounds.queues, bounds.tags, bounds.aspects) == (1, 1, frozenset())
    raw = msgspec.msgpack.encode(fields[:PLAIN_FIELDS] if plain else fields)
    return PREFIX + _spelled(raw + _crc(raw))


def parse(token: str, file: Policy | None = None) -> Token:
    """Parse a token; raises `TokenError` if it is damaged or of another version.

    The token of a specification file names that file, so pass the policy of the file as `file`.
    """
    payload = _payload(token)
    own = None if file is None or file.extension is None else file.extension.file
    base = None if own is None else PurePath(own).name
    if payload.preset.endswith(".py") and base is None:
        raise TokenError(f"the token is a run of {payload.preset}; name that file after it")
    if base is not None and payload.preset != base:
        raise TokenError(f"the token is a run of {payload.preset}, not of {base}")
    requests, messages, hold_ticks, scan_ticks = payload.bounds
    try:
        policy = policy_from(payload.preset) if base is None or file is None else file
        known = policy.name.split("+")[1:]  # the caller may have set some of the knobs already
        for setting in (each for each in payload.knobs if each not in known):
            policy = with_knob(policy, setting)
        bounds = Bounds(
            "token",
            requests,
            None if messages < 0 else messages,
            hold_ticks,
            scan_ticks,
            payload.queues,
            payload.tags,
            frozenset(payload.aspects),
        )
    except SpecUserError as error:
        raise TokenError(f"the token is from another version of the specification: {error}") from error
    return Token(policy, bounds, payload.property_name, payload.fingerprint, tuple(payload.actions))


def replay(token: str, file: Policy | None = None) -> Trace:
    """The run of a token, as a trace. For a token of a specification file, pass the policy of the file as `file`.

    Raises `TokenError` if the token is damaged or of another specification, or if one of its steps is not enabled.
    """
    named = parse(token, file)
    model = specification_of(named.policy, named.bounds)
    if fingerprint_of(model) != named.fingerprint:
        raise TokenError("the token is from another version of the specification; get a new one from `longpoll check`")
    if any(not 0 <= index < len(model.actions) for index in named.actions):
        raise TokenError("the token has an unknown action; get a new one from `longpoll check`")
    try:
        return trace_of(model, [model.actions[index] for index in named.actions], named.property_name)
    except ValueError as error:
        raise TokenError(f"the token's run is impossible: {error}; get a new one from `longpoll check`") from error


def _payload(token: str) -> _Payload:
    if not token.startswith(PREFIX):
        raise TokenError(
            f"not a token of this version, which begins with {PREFIX!r}; get one from `longpoll check --json`"
        )
    if len(token) > LENGTH_MAX:
        raise TokenError(f"the token has {len(token)} characters; at most {LENGTH_MAX} are allowed")
    text = token[len(PREFIX) :]
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise TokenError("the token is damaged; copy the whole token again") from error
    raw, crc = packed[:-CRC_BYTES], packed[-CRC_BYTES:]
    # Decoding ignores some bits of the last character, so the token is encoded again to accept one spelling only.
    if crc != _crc(raw) or _spelled(packed) != text:
        raise TokenError("the token is damaged; copy the whole token again")
    try:
        return msgspec.msgpack.decode(raw, type=_Payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise TokenError(f"the token is from another version: {error}") from error


def _spelled(packed: bytes) -> str:
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def _crc(raw: bytes) -> bytes:
    return zlib.crc32(raw).to_bytes(CRC_BYTES, "big")


def _settings(policy: Policy) -> tuple[str, list[str]]:
    """The name of the preset or file that a policy is based on, and the settings of the knobs in which it differs."""
    own = policy.extension
    if own is not None:
        base, *knobs = policy.name.split("+")
        return base if own.file is None else PurePath(own.path).name, knobs
    preset = PRESETS.get(policy.name.split("+", 1)[0], STRICT)
    values = ((knob, getattr(policy, knob), getattr(preset, knob)) for knob in knob_values())
    return preset.name, [f"{knob}={str(mine).lower()}" for knob, mine, its in values if mine != its]
