"""Headers of what brokers tell name servers.

Source: `RegisterBrokerRequestHeader.java`, `UnRegisterBrokerRequestHeader.java`, `QueryDataVersionRequestHeader.java`
and their responses.
"""

from __future__ import annotations

from longpoll_protocol.headers.base import Header, Int32, Int64


class RegisterBrokerRequestHeader(Header):
    """103 REGISTER_BROKER: a broker says where it is; the body is its table of topics."""

    broker_name: str
    broker_addr: str
    """HOST:PORT."""
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    compressed: bool = False
    """Whether the body is deflated (`compressedRegister`)."""
    body_crc32: Int32 = 0
    """CRC-32 of the body less its top bit; 0: not said."""


class RegisterBrokerResponseHeader(Header):
    """The reply to 103; it names a slave's master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnRegisterBrokerRequestHeader(Header):
    """104 UNREGISTER_BROKER: a broker leaves."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionRequestHeader(Header):
    """322 QUERY_DATA_VERSION: whether the name server has the broker's present topics; the body is their version."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionResponseHeader(Header):
    """The reply to 322; the body is the version that the name server has, if any."""

    changed: bool
