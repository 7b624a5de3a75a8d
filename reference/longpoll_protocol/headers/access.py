"""Headers that change or ask for the accounts of a broker.

Source: `CreateAccessConfigRequestHeader.java`, `DeleteAccessConfigRequestHeader.java`,
`UpdateGlobalWhiteAddrsConfigRequestHeader.java`, `GetBrokerAclConfigResponseHeader.java` of 4.9.7.
"""

from __future__ import annotations

from longpoll_protocol.headers.base import Header


class CreateAccessConfigRequestHeader(Header):
    """50 UPDATE_AND_CREATE_ACL_CONFIG: make an account or change it; what is left out stays as it is."""

    access_key: str
    secret_key: str | None = None
    """Required in every case, although an account that is changed has one."""
    white_remote_address: str | None = None
    admin: bool = False
    """Set in every case, also by leaving it out."""
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    """NAME=RIGHT, separated by commas; all of them."""
    group_perms: str | None = None


class DeleteAccessConfigRequestHeader(Header):
    """51 DELETE_ACL_CONFIG: remove an account."""

    access_key: str


class UpdateGlobalWhiteAddrsConfigRequestHeader(Header):
    """53 UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: the addresses that need no account, instead of those before."""

    global_white_addrs: str
    """Separated by commas."""
    acl_file_full_path: str | None = None
    """Which file; empty: the broker's only or first one."""


class GetBrokerAclConfigResponseHeader(Header):
    """The reply to 52: which state of its accounts a broker has."""

    version: str
    """A `DataVersion` as JSON."""
    all_acl_file_version: str | None = None
    """The same by the path of each file, as JSON."""
    broker_name: str
    broker_addr: str
    cluster_name: str
