"""Headers of requests that read or change a broker's accounts.

Source: `CreateAccessConfigRequestHeader.java`, `DeleteAccessConfigRequestHeader.java`,
`UpdateGlobalWhiteAddrsConfigRequestHeader.java`, `GetBrokerAclConfigResponseHeader.java` of 4.9.7.
"""

from __future__ import annotations

from longpoll_protocol.headers.base import Header


class CreateAccessConfigRequestHeader(Header):
    """50 UPDATE_AND_CREATE_ACL_CONFIG: create or change an account; absent fields stay."""

    access_key: str
    secret_key: str | None = None
    """Always required, even to change an account."""
    white_remote_address: str | None = None
    admin: bool = False
    """Always set; absent means false."""
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    """The complete list of NAME=RIGHT, separated by commas."""
    group_perms: str | None = None


class DeleteAccessConfigRequestHeader(Header):
    """51 DELETE_ACL_CONFIG: remove an account."""

    access_key: str


class UpdateGlobalWhiteAddrsConfigRequestHeader(Header):
    """53 UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: replace the global allow-list."""

    global_white_addrs: str
    """Separated by commas."""
    acl_file_full_path: str | None = None
    """Path of the file; empty: the broker's only or first one."""


class GetBrokerAclConfigResponseHeader(Header):
    """The reply to 52: the version of a broker's accounts."""

    version: str
    """A `DataVersion` as JSON."""
    all_acl_file_version: str | None = None
    """The versions by path of each file, as JSON."""
    broker_name: str
    broker_addr: str
    cluster_name: str
