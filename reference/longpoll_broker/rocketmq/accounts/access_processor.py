"""Serves codes 50 to 54, by which administrators read and change a broker's accounts and their file.

Answers and error codes are those of 4.9.7 (`AccountsResponseCode`); on an error nothing changes. This module is
stricter than 4.9.7, which accepts accounts that it then cannot read, and accepts any valid signature. Here only an
administrator may send these codes (`rocketmq.accounts.access.ADMIN_CODES`), because code 54 returns all secrets. Only
one account file is supported.

Source: `AdminBrokerProcessor.updateAndCreateAccessConfig` and its neighbours, `Permission.checkResourcePerms` of 4.9.7.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import msgspec
from attrs import frozen

from longpoll_broker.config import BrokerConfig
from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Serving, answer, serves
from longpoll_broker.rocketmq.accounts.access import RIGHTS
from longpoll_broker.rocketmq.accounts.access_control import KEY_SIZE_MIN, AccessControl, AccountFile, Value
from longpoll_protocol.admin_headers import (
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    GetBrokerAclConfigResponseHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
)
from longpoll_protocol.bodies import DataVersion
from longpoll_protocol.codes import AccountsResponseCode, RequestCode, ResponseCode
from longpoll_protocol.frames import Command
from longpoll_runtime.logs import event
from longpoll_spec.errors import ConfigError

log = logging.getLogger(__name__)

Edit = Callable[[AccountFile], bool]
"""Changes a file; returns whether anything changed."""
_UPDATE_FAILED: Final = AccountsResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED


@frozen
class AccessProcessor(Serving):
    """The processors for one broker's accounts."""

    access: AccessControl
    config: BrokerConfig
    broker_address: str
    """The broker's HOST:PORT."""

    @serves(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG)
    def put_account(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 50: create or change an account; answers with code 209 if the file cannot contain the account."""
        header = CreateAccessConfigRequestHeader.decode(command.ext_fields)
        if len(header.access_key) < KEY_SIZE_MIN or len(header.secret_key or "") < KEY_SIZE_MIN:
            told = f"The accessKey={header.access_key[:64]} and its secretKey must be longer than {KEY_SIZE_MIN - 1}"
            return answer(command, _UPDATE_FAILED, told)
        topics, groups = _split(header.topic_perms), _split(header.group_perms)
        problem = _rights_problem([*(topics or ()), *(groups or ())])
        if problem is not None:
            return answer(command, _UPDATE_FAILED, problem)
        given: dict[str, Value | None] = {
            "secretKey": header.secret_key,
            "whiteRemoteAddress": header.white_remote_address,
            "admin": header.admin,
            "defaultTopicPerm": header.default_topic_perm or None,
            "defaultGroupPerm": header.default_group_perm or None,
            "topicPerms": topics,
            "groupPerms": groups,
        }
        values = {name: value for name, value in given.items() if value is not None}
        return self._change(
            channel, command, lambda file: file.put_account(header.access_key, values), _UPDATE_FAILED, ""
        )

    @serves(RequestCode.DELETE_ACL_CONFIG)
    def delete_account(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 51: remove an account; answers with code 210 if the account does not exist."""
        key = DeleteAccessConfigRequestHeader.decode(command.ext_fields).access_key
        told = f"The accesskey[{key[:64]}] corresponding to accessConfig has been deleted failed."
        code = AccountsResponseCode.DELETE_ACL_CONFIG_FAILED
        return self._change(channel, command, lambda file: file.remove_account(key), code, told)

    @serves(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG)
    def put_white_addresses(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 53: set the global allow-list; answers with code 211 if the list is invalid or for another file."""
        header = UpdateGlobalWhiteAddrsConfigRequestHeader.decode(command.ext_fields)
        code = AccountsResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
        if header.acl_file_full_path not in {None, "", self.access.path}:
            told = f"The globalWhiteAddresses[{header.global_white_addrs[:128]}] has been updated failed."
            return answer(command, code, f"{told} Only {self.access.path} is read here.")
        addresses = _split(header.global_white_addrs) or []
        return self._change(channel, command, lambda file: file.put_white_addresses(addresses), code, "")

    @serves(RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
    def version(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 52: return the number of account changes, and the time of the last change."""
        counter, time_ms = self.access.version()
        version = DataVersion(counter=counter, timestamp=time_ms)
        header = GetBrokerAclConfigResponseHeader(
            version=version.encode().decode(),
            all_acl_file_version=msgspec.json.encode({self.access.path: version}).decode(),
            broker_name=self.config.broker_name,
            broker_addr=self.broker_address,
            cluster_name=self.config.cluster_name,
        )
        return answer(command, ResponseCode.SUCCESS, None, header.encode())

    @serves(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
    def accounts(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 54: return every account with its secret, and the allow-list."""
        return answer(command, ResponseCode.SUCCESS, body=self.access.listed().encode())

    def _change(self, channel: Channel, command: Command, edit: Edit, code: int, missing: str) -> Parts:
        """Change the file, or answer with `code` and a reason, which is `missing` if `edit` changes nothing."""
        try:
            done = self.access.change(edit)
        except (ConfigError, OSError) as error:
            return answer(command, code, f"the accounts are not changed: {error}")
        if not done:
            return answer(command, code, missing)
        log.warning(
            "%s changed the accounts of %s by request %d",
            channel,
            self.access.path,
            command.code,
            extra=event("accounts_changed", peer=channel.peer, code=command.code),
        )
        return answer(command, ResponseCode.SUCCESS)


def _split(text: str | None) -> list[str] | None:
    """Split a text as Java's `String.split` does: drop trailing empty parts, but keep the first part."""
    if text is None:
        return None
    parts = text.split(",")
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return parts


def _rights_problem(texts: list[str]) -> str | None:
    """Returns what is wrong with rights written as NAME=RIGHT, in RocketMQ's words, or None."""
    for text in texts:
        name, equals, right = text.partition("=")
        if not name.strip() or not equals or "=" in right:
            return (
                f"Parse Resource format error for {text[:128]}.\n"
                "The expected resource format is 'Res=Perm'. For example: topicA=SUB"
            )
        if right.strip() not in RIGHTS:
            return (
                f"Parse resource permission error for {text[:128]}.\n"
                "The expected permissions are 'SUB' or 'PUB' or 'SUB|PUB' or 'PUB|SUB'."
            )
    return None
