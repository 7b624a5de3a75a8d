"""Accepts or refuses requests by the accounts in a `plain_acl.yml`, which is read again when it changes.

If a new file is unusable, this is logged once and the old accounts stay. Decisions: see `rocketmq.accounts.access`.
Topics and groups of a request: see `resources`.

Source: `PlainPermissionManager.load` and `watch` of 4.9.7.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from attrs import define, field
from msgspec import Meta, Struct

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
    may_use,
    problem,
    read_rights,
)
from longpoll_broker.rocketmq.accounts.account_file import AccountFile
from longpoll_broker.rocketmq.accounts.address_patterns import address_match
from longpoll_broker.rocketmq.accounts.resources import RecordAt, add_record, wanted_by
from longpoll_protocol.bodies import ClusterAclConfig, PlainAccessConfig
from longpoll_protocol.codes import ResponseCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import Command
from longpoll_protocol.log_record import Record
from longpoll_protocol.signature import ACCESS_KEY, SIGNATURE, sign
from longpoll_protocol.sizes import MIB
from longpoll_runtime import Lock, Runtime
from longpoll_runtime.logs import event
from longpoll_spec.errors import ConfigError
from longpoll_spec.tables import with_table

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
"""Interval between checks of the file, seconds (`FileWatchService.WATCH_INTERVAL`)."""
FILE_SIZE_MAX: Final = 4 * MIB
JAVA_ERROR: Final = "org.apache.rocketmq.acl.common.AclException"
"""Prefix of the remark in Java's refusals, which clients look for."""
KEY_SIZE_MIN: Final = 7
"""`AclConstants.ACCESS_KEY_MIN_LENGTH` and the like are 6, and must be exceeded."""

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
    """The accounts of one file; used by the threads that serve connections.

    Invariant: `_rules` are made from `_content`, which is valid; `_seen` is the file's content at the last check.
    """

    runtime: Runtime
    path: str
    """Absolute."""
    record_at: RecordAt = field(default=lambda _offset: None)
    """Finds messages that requests name by log offset."""
    _content: bytes = field(default=b"", init=False)
    _seen: bytes = field(default=b"", init=False)
    _rules: Rules = field(init=False)
    _read_ms: int = field(default=0, init=False)
    """When the content was read, by the wall clock."""
    _taken_ns: int = field(default=0, init=False)
    """When the content was read, by the monotonic clock."""
    _guard: Lock = field(init=False)
    """Held while file, content and rules are updated."""
    _look_ns: int = field(default=0, init=False)
    _told: str = field(default="", init=False)
    """The last error of the file, if it is unusable."""

    def __attrs_post_init__(self) -> None:
        """Read the file; raises ConfigError."""
        self._guard = self.runtime.lock()
        content = self._read()
        self._take(content, read_rules(content, self.path))

    def _take(self, content: bytes, rules: Rules) -> None:
        self._content = self._seen = content
        self._rules, self._read_ms = rules, self.runtime.unix_ms()
        self._taken_ns = self.runtime.monotonic_ns()

    def refusal(self, channel: Channel, command: Command) -> Parts | None:
        """Returns the answer to a refused request (code 1, as Java's); None if it is accepted."""
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
        except HeaderError as error:
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
        """Whether a peer may get a message that it did not request; given as record or topic.

        Its last account needs the right.
        """
        self._look()
        wanted = Wanted()
        if isinstance(record, str):
            wanted.topic(record, right)
        else:
            add_record(wanted, record, right)
        return may_use(self._rules, channel.peer_host[0], channel.account, wanted)

    def may_still_pull(self, pull: Pull) -> bool:
        """Whether a held pull may get messages: its account may have lost a right meanwhile."""
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
        """Read changed file content, at most twice a second."""
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
            self._told = ""
        except ConfigError as error:
            if str(error) != self._told:
                log.warning(
                    "%s; the accounts before it stay", error, extra=event("accounts_unusable", reason=str(error))
                )
            self._told = str(error)

    # -- for administrators --------------------------------------------------------------------------------------------

    def change(self, edit: Callable[[AccountFile], bool]) -> bool:
        """Change the file and apply it at once; returns False if `edit` finds nothing to change.

        Raises ConfigError if the file is unusable before or after the change, and OSError if it cannot be written;
        nothing changes then.
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
        """Returns the number of tools' changes and the last one's time, ms; without any (0, time of reading)."""
        return AccountFile.parse(self._content).version or (0, self._read_ms)

    def listed(self) -> ClusterAclConfig:
        """Returns all accounts as the file has them."""
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
    """Parse a file's accounts; raises ConfigError with the problem and its place."""
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
