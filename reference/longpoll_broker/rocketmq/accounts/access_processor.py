"""Serves 50 to 54: administrators ask for the accounts of a broker and change them, and the file with them.

Answers are 4.9.7's, with its codes for what cannot be done (`AccountsResponseCode`); nothing is changed then. Stricter
than 4.9.7, which takes accounts that its own permissions then cannot be read from, and lets every right signature do
this: here it needs an administrator's (`rocketmq.accounts.access.ADMIN_CODES`), for 54 tells all secrets.
Leaves out changing several files: there is one.

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
from longpoll_broker.rocketmq.accounts.access_control import KEY_SIZE_MIN, AccessControl
from longpoll_broker.rocketmq.accounts.account_file import AccountFile, Value
from longpoll_protocol.bodies import DataVersion
from longpoll_protocol.codes import AccountsResponseCode, RequestCode, ResponseCode
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import (
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    GetBrokerAclConfigResponseHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
)
from longpoll_runtime.logs import event
from longpoll_spec.errors import ConfigError

log = logging.getLogger(__name__)

Edit = Callable[[AccountFile], bool]
"""Changes a file; whether there was something to change."""
_UPDATE_FAILED: Final = AccountsResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED


@frozen
class AccessProcessor(Serving):
    """The processors of one broker's accounts."""

    access: AccessControl
    config: BrokerConfig
    broker_address: str
    """HOST:PORT."""

    @serves(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG)
    def put_account(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """50: make an account or change it; 209 when the file cannot hold it."""
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

        def edit(file: AccountFile) -> bool:
            file.put_account(header.access_key, values)
            return True

        return self._change(channel, command, edit, _UPDATE_FAILED, "")

    @serves(RequestCode.DELETE_ACL_CONFIG)
    def delete_account(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """51: remove an account; 210 when there is none."""
        key = DeleteAccessConfigRequestHeader.decode(command.ext_fields).access_key
        told = f"The accesskey[{key[:64]}] corresponding to accessConfig has been deleted failed."
        code = AccountsResponseCode.DELETE_ACL_CONFIG_FAILED
        return self._change(channel, command, lambda file: file.remove_account(key), code, told)

    @serves(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG)
    def put_white_addresses(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """53: the addresses that need no account; 211 when they are none, or meant for another file."""
        header = UpdateGlobalWhiteAddrsConfigRequestHeader.decode(command.ext_fields)
        code = AccountsResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
        if header.acl_file_full_path not in {None, "", self.access.path}:
            told = f"The globalWhiteAddresses[{header.global_white_addrs[:128]}] has been updated failed."
            return answer(command, code, f"{told} Only {self.access.path} is read here.")
        addresses = _split(header.global_white_addrs) or []

        def edit(file: AccountFile) -> bool:
            file.put_white_addresses(addresses)
            return True

        return self._change(channel, command, edit, code, "")

    @serves(RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
    def version(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """52: how often the accounts were changed, and when."""
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
        """54: every account with its secret, and the white addresses."""
        return answer(command, ResponseCode.SUCCESS, body=self.access.listed().encode())

    def _change(self, channel: Channel, command: Command, edit: Edit, code: int, missing: str) -> Parts:
        """Change the file, or answer `code` and why not; `missing` is the reason when there is nothing to change."""
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
    """The parts of a text as Java splits it: those at the end that are empty do not count, but for an only one."""
    if text is None:
        return None
    parts = text.split(",")
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return parts


def _rights_problem(texts: list[str]) -> str | None:
    """What is wrong with rights written as NAME=RIGHT, in Java's words; None when nothing is."""
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
