"""Edits the text of a `plain_acl.yml` as RocketMQ's broker does for its tools.

Unchanged values keep their text: 0123 stays 0123, where Java would write 83. As in Java, comments and blank lines are
dropped, a changed account moves to the end, and `dataVersion` counts the changes. The file on disk: see
`rocketmq.accounts.access_control`.

Source: `PlainPermissionManager.updateAccessConfig`, `createAclAccessConfigMap`, `deleteAccessConfig`,
`updateGlobalWhiteAddrsConfig`, `updateAclConfigFileVersion` and `AclUtils.writeDataObject` of 4.9.7.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import yaml
from attrs import define
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from longpoll_spec.errors import ConfigError

WHITE: Final = "globalWhiteRemoteAddresses"
ACCOUNTS: Final = "accounts"
VERSION: Final = "dataVersion"
ACCESS_KEY: Final = "accessKey"

_TEXT: Final = "tag:yaml.org,2002:str"
_INT: Final = "tag:yaml.org,2002:int"
_BOOL: Final = "tag:yaml.org,2002:bool"
_NULL: Final = "tag:yaml.org,2002:null"
_LIST: Final = "tag:yaml.org,2002:seq"
_MAP: Final = "tag:yaml.org,2002:map"

Value = str | bool | list[str]


@define
class AccountFile:
    """One file's content as YAML nodes, so that unchanged values are written as they were read."""

    root: MappingNode

    @classmethod
    def parse(cls, content: bytes) -> AccountFile:
        """Parse a file, which may be empty; raises ConfigError."""
        try:
            node = yaml.compose(content, Loader=yaml.SafeLoader)
        except (yaml.YAMLError, RecursionError) as error:
            raise ConfigError(f"it is not YAML{_place(error)}") from None
        if node is None or not node.value:
            node = MappingNode(_MAP, [])
        if not isinstance(node, MappingNode):
            raise ConfigError(f"it has no {ACCOUNTS}; it must contain {WHITE}, {ACCOUNTS} and {VERSION}")
        return cls(node)

    def values(self) -> dict[str, Any]:
        """Returns the content: tables, lists, and scalars as text, without nulls.

        Raises ConfigError, or RecursionError for a list that contains itself.
        """
        return _values_of(self.root)

    def text(self) -> bytes:
        """Returns the file in Java's layout: one value per line."""
        _lay_out(self.root, set())
        written = self._written(as_it_is=True)
        # PyYAML treats these as line breaks and would not read its own output back.
        if any(mark in written for mark in "\x85\u2028\u2029"):
            written = self._written(as_it_is=False)
        return written.encode()

    def _written(self, *, as_it_is: bool) -> str:
        """Serialise the file, with non-ASCII letters as they are or escaped."""
        written = yaml.serialize(self.root, Dumper=yaml.SafeDumper, allow_unicode=as_it_is)
        assert isinstance(written, str)
        return written

    # -- accounts ------------------------------------------------------------------------------------------------------

    def put_account(self, key: str, values: Mapping[str, Value]) -> None:
        """Create or change an account and move it to the end; fields not in `values` stay."""
        accounts = self._list(ACCOUNTS)
        account = self._take(key) or MappingNode(_MAP, [])
        for name, value in {ACCESS_KEY: key, **values}.items():
            _put(account, name, _node(value))
        accounts.value.append(account)

    def remove_account(self, key: str) -> bool:
        """Remove an account; returns whether it existed."""
        return self._take(key) is not None

    def put_white_addresses(self, addresses: Iterable[str]) -> None:
        """Replace the global allow-list."""
        _put(self.root, WHITE, _node(list(addresses)))

    def _take(self, key: str) -> MappingNode | None:
        accounts = self._list(ACCOUNTS).value
        for account in accounts:
            if isinstance(account, MappingNode) and _text_of(_get(account, ACCESS_KEY)) == key:
                accounts.remove(account)
                return account
        return None

    # -- the version ---------------------------------------------------------------------------------------------------

    @property
    def version(self) -> tuple[int, int] | None:
        """Number of changes, and time of the last in ms since 1970; None if the file has no version."""
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
        """Find or create a list of the root; raises ConfigError if it is something else."""
        found = _get(self.root, name)
        if found is None or _is_null(found):
            found = SequenceNode(_LIST, [])
            _put(self.root, name, found)
        if not isinstance(found, SequenceNode):
            raise ConfigError(f"its {name} must be a list")
        return found


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
    """Returns the value of a key; of a duplicate key the last, as in a YAML loader."""
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
    """Reset a node's layout, so that all is written alike; visits shared nodes once."""
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
    """Returns the position of a YAML error, but not the text, which may be a secret."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is not None:
        return f": look at line {mark.line + 1}, column {mark.column + 1}, and before"
    position = getattr(error, "position", None)
    return "" if position is None else f": look at character {position + 1}"
