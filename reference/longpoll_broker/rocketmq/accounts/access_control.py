"""Accepts or refuses requests by the accounts in a `plain_acl.yml`, and reads the file again when it changes.

If a new file is unusable, an error is logged once and the old accounts stay in use. Decisions: see
`rocketmq.accounts.access`. Topics and groups of a request: see `resources`.

Changes by tools keep the text of unchanged values: 0123 stays 0123, while RocketMQ would write 83. As in RocketMQ,
comments and blank lines are dropped, a changed account moves to the end, and `dataVersion` counts the changes.

Source: `PlainPermissionManager.java` and `AclUtils.writeDataObject` of 4.9.7.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Final

import msgspec
import yaml
from attrs import define, field
from msgspec import Meta, Struct
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from longpoll_broker.hold.hold_table import Pull
from longpoll_broker.io.channel import Channel, Parts
from longpoll_broker.io.processors import answer
from longpoll_broker.rocketmq.accounts.access import (
    RIGHTS,
    Account,
    Claim,
    Right,
    Rules,
    Wanted,
    address_match,
    may_use,
    problem,
    read_rights,
)
from longpoll_broker.rocketmq.accounts.resources import RecordAt, add_record, wanted_by
from longpoll_protocol.bodies import ClusterAclConfig, PlainAccessConfig
from longpoll_protocol.codes import ResponseCode
from longpoll_protocol.errors import HeaderError, MessageRefusedError
from longpoll_protocol.frames import Command
from longpoll_protocol.log_record import Record
from longpoll_protocol.signature import ACCESS_KEY, SIGNATURE, sign
from longpoll_protocol.sizes import MIB
from longpoll_runtime import Lock, Runtime
from longpoll_runtime.logs import event
from longpoll_spec.errors import ConfigError
from longpoll_spec.tables import with_table

WHITE: Final = "globalWhiteRemoteAddresses"
ACCOUNTS: Final = "accounts"
VERSION: Final = "dataVersion"
_KEY: Final = "accessKey"

_TEXT: Final = "tag:yaml.org,2002:str"
_INT: Final = "tag:yaml.org,2002:int"
_BOOL: Final = "tag:yaml.org,2002:bool"
_NULL: Final = "tag:yaml.org,2002:null"
_LIST: Final = "tag:yaml.org,2002:seq"
_MAP: Final = "tag:yaml.org,2002:map"

# PyYAML's loader in C is ten times as fast, which matters because clients wait while a change is read. The C loader's
# error messages and treatment of unusual letters differ from the Python loader's.
_QUICK_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
FLAT_SIZE_MAX: Final = 1_000
"""The C loader reads only files that have at most this many bytes per line and at most this many brackets in total."""
_QUICK_DUMPER: Final = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

Value = str | bool | list[str]


@define
class AccountFile:
    """The content of one file as YAML nodes, so that unchanged values are written as they were read."""

    root: MappingNode

    @classmethod
    def parse(cls, content: bytes) -> AccountFile:
        """Parse a file, which may be empty; raises ConfigError if it is not valid YAML."""
        try:
            node = _compose(content)
        except (yaml.YAMLError, RecursionError) as error:
            raise ConfigError(f"it is not YAML{_place(error)}") from None
        if node is None or not node.value:
            node = MappingNode(_MAP, [])
        if not isinstance(node, MappingNode):
            raise ConfigError(f"it has no {ACCOUNTS}; it must contain {WHITE}, {ACCOUNTS} and {VERSION}")
        return cls(node)

    def values(self) -> dict[str, Any]:
        """Returns the content as tables, lists and texts, without nulls.

        Raises ConfigError, or RecursionError for a list that contains itself.
        """
        return _values_of(self.root)

    def text(self) -> bytes:
        """Returns the file in RocketMQ's layout: one value per line."""
        _lay_out(self.root, set())
        written = self._written(as_it_is=True)
        # PyYAML treats these characters as line breaks and would not read its own output back.
        if any(mark in written for mark in "\x85\u2028\u2029"):
            written = self._written(as_it_is=False)
        return written.encode()

    def _written(self, *, as_it_is: bool) -> str:
        """Serialise the file; `as_it_is` says whether non-ASCII letters stay unchanged instead of being escaped."""
        with contextlib.suppress(yaml.YAMLError, UnicodeError):
            written = yaml.serialize(self.root, Dumper=_QUICK_DUMPER, allow_unicode=as_it_is)
            if isinstance(written, str) and written.isascii():
                return written
        written = yaml.serialize(self.root, Dumper=yaml.SafeDumper, allow_unicode=as_it_is)
        assert isinstance(written, str)
        return written

    # -- accounts ------------------------------------------------------------------------------------------------------

    def put_account(self, key: str, values: Mapping[str, Value]) -> bool:
        """Create or change an account and move it to the end. Fields that are not in `values` stay. Returns true."""
        accounts = self._list(ACCOUNTS)
        account = self._take(key) or MappingNode(_MAP, [])
        for name, value in {_KEY: key, **values}.items():
            _put(account, name, _node(value))
        accounts.value.append(account)
        return True

    def remove_account(self, key: str) -> bool:
        """Remove an account; returns whether it existed."""
        return self._take(key) is not None

    def put_white_addresses(self, addresses: list[str]) -> bool:
        """Replace the global allow-list; returns true."""
        _put(self.root, WHITE, _node(addresses))
        return True

    def _take(self, key: str) -> MappingNode | None:
        accounts = self._list(ACCOUNTS).value
        for account in accounts:
            if isinstance(account, MappingNode) and _text_of(_get(account, _KEY)) == key:
                accounts.remove(account)
                return account
        return None

    # -- the version ---------------------------------------------------------------------------------------------------

    @property
    def version(self) -> tuple[int, int] | None:
        """Returns the number of changes and the time of the last change, ms since 1970; None without a version."""
        versions = _get(self.root, VERSION)
        if not isinstance(versions, SequenceNode) or not versions.value:
            return None
        first = versions.value[0]
        if not isinstance(first, MappingNode):
            return None
        counter, time_ms = (_text_of(_get(first, name)) or "" for name in ("counter", "timestamp"))
        return (int(counter), int(time_ms)) if counter.isdecimal() and time_ms.isdecimal() else None

    def count_change(self, now_ms: int) -> None:
        """Increment the version."""
        counter = self.version[0] if self.version is not None else 0
        version = MappingNode(_MAP, [])
        _put(version, "counter", ScalarNode(_INT, str(counter + 1)))
        _put(version, "timestamp", ScalarNode(_INT, str(now_ms)))
        _put(self.root, VERSION, SequenceNode(_LIST, [version]))

    def _list(self, name: str) -> SequenceNode:
        """Find or create a list of the root; raises ConfigError if its value is not a list."""
        found = _get(self.root, name)
        if found is None or _is_null(found):
            found = SequenceNode(_LIST, [])
            _put(self.root, name, found)
        if not isinstance(found, SequenceNode):
            raise ConfigError(f"its {name} must be a list")
        return found


def _compose(content: bytes) -> Node | None:
    # The C loader does not limit recursion, so thousands of nested lists would crash the process in it.
    longest = max(map(len, content.splitlines()), default=0)
    if longest <= FLAT_SIZE_MAX and content.count(b"[") + content.count(b"{") <= FLAT_SIZE_MAX:
        with contextlib.suppress(yaml.YAMLError):
            return yaml.compose(content, Loader=_QUICK_LOADER)
    return yaml.compose(content, Loader=yaml.SafeLoader)


def _values_of(mapping: MappingNode) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in mapping.value:
        name = _text_of(key)
        if name is None:
            raise ConfigError("a key in it is not text")
        if not _is_null(value):
            found[name] = _value_of(value)
    return found


def _value_of(node: Node) -> Any:
    if isinstance(node, MappingNode):
        return _values_of(node)
    if isinstance(node, SequenceNode):
        return [_value_of(item) for item in node.value if not _is_null(item)]
    return node.value


def _node(value: Value) -> Node:
    if isinstance(value, bool):
        return ScalarNode(_BOOL, "true" if value else "false")
    if isinstance(value, str):
        return ScalarNode(_TEXT, value)
    return SequenceNode(_LIST, [ScalarNode(_TEXT, item) for item in value])


def _get(mapping: MappingNode, name: str) -> Node | None:
    """Returns the value of a key. If the key occurs several times, returns the last value, as a YAML loader does."""
    found: Node | None = None
    for key, value in mapping.value:
        if _text_of(key) == name:
            found = value
    return found


def _put(mapping: MappingNode, name: str, value: Node) -> None:
    entries = [entry for entry in mapping.value if _text_of(entry[0]) == name]
    if not entries:
        mapping.value.append((ScalarNode(_TEXT, name), value))
    for key, before in entries:
        mapping.value[mapping.value.index((key, before))] = (key, value)


def _text_of(node: Node | None) -> str | None:
    return node.value if isinstance(node, ScalarNode) else None


def _is_null(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.tag == _NULL


def _lay_out(node: Node, done: set[int]) -> None:
    """Reset a node's layout, so that all values are written in the same style; handles each shared node once."""
    if id(node) in done:
        return
    done.add(id(node))
    if isinstance(node, ScalarNode):
        node.style = None
        if _is_null(node):
            node.value = "null"
        return
    assert isinstance(node, SequenceNode | MappingNode)
    node.flow_style = False
    for item in node.value:
        for part in item if isinstance(node, MappingNode) else (item,):
            _lay_out(part, done)


def _place(error: Exception) -> str:
    """Returns the position of a YAML error without the text at that position, which may be a secret."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is not None:
        return f": look at line {mark.line + 1}, column {mark.column + 1}, and before"
    position = getattr(error, "position", None)
    return "" if position is None else f": look at character {position + 1}"


log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
"""Interval between checks of the file, seconds (`FileWatchService.WATCH_INTERVAL`)."""
FILE_SIZE_MAX: Final = 4 * MIB
JAVA_ERROR: Final = "org.apache.rocketmq.acl.common.AclException"
"""Prefix of the remark in RocketMQ's refusals; clients recognise a refusal by it."""
KEY_SIZE_MIN: Final = 7
"""Minimum length of a key, one more than RocketMQ's constants such as `AclConstants.ACCESS_KEY_MIN_LENGTH`."""

_Key = Annotated[str, Meta(min_length=KEY_SIZE_MIN)]


@with_table
class _Account(Struct, frozen=True, rename="camel"):
    """One entry of `accounts`; keys may be written as numbers."""

    access_key: _Key
    secret_key: _Key
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: list[str] | None = None
    group_perms: list[str] | None = None


@with_table
class _File(Struct, frozen=True, rename="camel"):
    global_white_remote_addresses: list[str] | None = None
    accounts: list[_Account] | None = None


@define(slots=True, eq=False)
class AccessControl:
    """The accounts of one file. The threads that serve connections use it.

    Invariant: `_rules` are made from `_content`, which is valid; `_seen` is the file's content at the last check.
    """

    runtime: Runtime
    path: str
    """Absolute path of the account file."""
    record_at: RecordAt = field(default=lambda _offset: None)
    """Finds the message that a request names by its log offset."""
    _content: bytes = field(default=b"", init=False)
    _seen: bytes = field(default=b"", init=False)
    _rules: Rules = field(init=False)
    _read_ms: int = field(default=0, init=False)
    """Time when the content was read, by the wall clock."""
    _taken_ns: int = field(default=0, init=False)
    """Time when the content was read, by the monotonic clock."""
    _guard: Lock = field(init=False)
    """Protects the file, its content and the rules while they are updated."""
    _look_ns: int = field(default=0, init=False)
    _last_error: str = field(default="", init=False)
    """The error message of the last unusable file; empty if the file is usable."""

    def __attrs_post_init__(self) -> None:
        """Read the file; raises ConfigError if it is unusable."""
        self._guard = self.runtime.lock()
        content = self._read()
        self._take(content, read_rules(content, self.path))

    def _take(self, content: bytes, rules: Rules) -> None:
        self._content = self._seen = content
        self._rules, self._read_ms = rules, self.runtime.unix_ms()
        self._taken_ns = self.runtime.monotonic_ns()

    def refusal(self, channel: Channel, command: Command) -> Parts | None:
        """Returns the answer to a refused request (code 1, as in RocketMQ), or None if the request is accepted."""
        self._look()
        fields = command.ext_fields or {}
        claim = Claim(channel.peer_host[0], fields.get(ACCESS_KEY), fields.get(SIGNATURE))
        try:
            reason = problem(
                self._rules,
                claim,
                command.code,
                partial(sign, fields, command.body, version=command.version),
                partial(wanted_by, command, self.record_at),
            )
        except (HeaderError, MessageRefusedError) as error:
            reason = str(error)
        if reason is None:
            channel.account = claim.access_key or ""
            return None
        log.warning(
            "%s request %d is refused: %s",
            channel,
            command.code,
            reason,
            extra=event("access_refused", peer=channel.peer, code=command.code, reason=reason),
        )
        return answer(command, ResponseCode.SYSTEM_ERROR, f"{JAVA_ERROR}: {reason}")

    def may_get(self, channel: Channel, record: Record | str, right: Right) -> bool:
        """Whether a peer may get a message that it did not request; `record` is the message or its topic.

        The account that signed the last request on the connection needs the right.
        """
        self._look()
        wanted = Wanted()
        if isinstance(record, str):
            wanted.topic(record, right)
        else:
            add_record(wanted, record, right)
        return may_use(self._rules, channel.peer_host[0], channel.account, wanted)

    def may_still_pull(self, pull: Pull) -> bool:
        """Whether the account of a held pull still has the right to get messages."""
        self._look()
        asked_ms = pull.deadline_ms - pull.timeout_ms
        if asked_ms * 1_000_000 > self._taken_ns:
            return True
        assert isinstance(pull.channel, Channel)
        wanted = Wanted()
        wanted.topic(pull.topic, Right.SUB)
        wanted.group(pull.group)
        return may_use(self._rules, pull.channel.peer_host[0], pull.channel.account, wanted)

    def _look(self) -> None:
        """Read the file again if it has changed; checks the file at most twice a second."""
        now_ns = self.runtime.monotonic_ns()
        if now_ns < self._look_ns:
            return
        self._look_ns = now_ns + int(LOOK_S * 1e9)
        with self._guard:
            self._read_again()

    def _read_again(self) -> None:
        try:
            content = self._read()
            if content != self._seen:
                self._seen = content
                self._take(content, read_rules(content, self.path))
                count = len(self._rules.accounts)
                log.warning(
                    "%s is read again: %d accounts", self.path, count, extra=event("accounts_read", accounts=count)
                )
            self._last_error = ""
        except ConfigError as error:
            if str(error) != self._last_error:
                log.warning(
                    "%s; the accounts before it stay", error, extra=event("accounts_unusable", reason=str(error))
                )
            self._last_error = str(error)

    # -- for administrators --------------------------------------------------------------------------------------------

    def change(self, edit: Callable[[AccountFile], bool]) -> bool:
        """Change the file and apply the change at once; returns False if `edit` finds nothing to change.

        Raises ConfigError if the file is unusable before or after the change, and OSError if the file cannot be
        written. After an error nothing has changed.
        """
        with self._guard:
            file = AccountFile.parse(self._read())
            if not edit(file):
                return False
            file.count_change(self.runtime.unix_ms())
            content = file.text()
            if len(content) > FILE_SIZE_MAX:
                raise ConfigError(f"they would have {len(content)} bytes, over the limit of {FILE_SIZE_MAX}")
            rules = read_rules(content, self.path)
            self.runtime.files.write_atomic(self.path, content)
            self._take(content, rules)
            return True

    def version(self) -> tuple[int, int]:
        """Returns the number of changes by tools, and the time of the last change, ms.

        Returns (0, time of reading) if no tool has changed the file.
        """
        return AccountFile.parse(self._content).version or (0, self._read_ms)

    def listed(self) -> ClusterAclConfig:
        """Returns all accounts of the file, for administrators."""
        file = _read_file(self._content)
        return ClusterAclConfig(
            global_white_addrs=file.global_white_remote_addresses or [],
            plain_access_configs=[_listed(account) for account in file.accounts or []],
        )

    def _read(self) -> bytes:
        try:
            content = self.runtime.files.read(self.path)
        except OSError as error:
            raise ConfigError(f"accounts {self.path} cannot be read: {error}; name another file") from None
        if len(content) > FILE_SIZE_MAX:
            raise ConfigError(f"accounts {self.path} have {len(content)} bytes, over the limit of {FILE_SIZE_MAX}")
        return content


def read_rules(content: bytes, path: str) -> Rules:
    """Parse a file's accounts; raises ConfigError with the problem and its position."""
    try:
        file = _read_file(content)
        accounts = [_account(entry) for entry in file.accounts or []]
        white = tuple(address_match(pattern) for pattern in file.global_white_remote_addresses or [])
    except (msgspec.ValidationError, ValueError, RecursionError, ConfigError) as error:
        said = " ".join(str(error).split())
        raise ConfigError(f"accounts {path} cannot be used: {said}") from None
    by_key = {account.access_key: account for account in accounts}
    if len(by_key) != len(accounts):
        raise ConfigError(f"accounts {path} cannot be used: an accessKey occurs twice")
    return Rules(white, by_key)


def _read_file(content: bytes) -> _File:
    """Parse a file; raises ConfigError, ValidationError or RecursionError."""
    return msgspec.convert(_tidied(AccountFile.parse(content).values()), _File, strict=False)


def _tidied(value: Any) -> Any:
    if isinstance(value, list):
        return [_tidied(item) for item in value]
    if isinstance(value, dict):
        return {name: _tidied(item) for name, item in value.items() if item != ""}
    return value


def _listed(entry: _Account) -> PlainAccessConfig:
    """Returns an account for administrators, without unset fields."""
    names = [name for name in PlainAccessConfig.__struct_fields__ if getattr(entry, name) is not None]
    return PlainAccessConfig(**{name: getattr(entry, name) for name in names})


def _account(entry: _Account) -> Account:
    return Account(
        access_key=entry.access_key,
        secret_key=entry.secret_key,
        is_white=address_match(entry.white_remote_address or ""),
        is_admin=entry.admin,
        default_topic=RIGHTS.get((entry.default_topic_perm or "").strip(), Right.DENY),
        default_group=RIGHTS.get((entry.default_group_perm or "").strip(), Right.DENY),
        rights=read_rights(entry.topic_perms or [], entry.group_perms or []),
    )
