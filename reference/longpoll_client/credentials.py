"""Who a client is, for a broker with access control: every request is signed with a secret that both know.

Leaves out the broker's side, which checks the same bytes (`core.tables.access`).

Source: `AclClientRPCHook.java`, `AclUtils.combineRequestContent`, `AclSigner.java`.
"""

from __future__ import annotations

from attrs import field, frozen

from longpoll_protocol.frames.frame import Buffer
from longpoll_protocol.signature import ACCESS_KEY, SIGNATURE, sign


@frozen
class Credentials:
    """An account of the broker's `plain_acl.yml`."""

    access_key: str
    secret_key: str = field(repr=False)

    def signed(self, fields: dict[str, str] | None, body: Buffer) -> dict[str, str]:
        """The extension fields of a request with the key and the signature added."""
        named = {**(fields or {}), ACCESS_KEY: self.access_key}
        return {**named, SIGNATURE: sign(named, body, self.secret_key)}
