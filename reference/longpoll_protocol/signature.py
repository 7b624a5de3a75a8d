"""The credentials of a client, and the signature that they add to a request.

The signature is HMAC-SHA1 over the values of the fields, in the order of their names, and over the body. The broker
checks the signature in `rocketmq.accounts.access`.

Source: `AclUtils.combineRequestContent`, `AclSigner.calSignature`, `AclClientRPCHook.java` of 4.9.7;
`PlainAccessValidator.parse` of 5.x.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from typing import Final

from attrs import field, frozen

from longpoll_protocol.codes import VERSION
from longpoll_protocol.frames import Buffer

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
"""The name of a field (`MixAll.UNIQUE_MSG_QUERY_FLAG`) that clients sign from 4.9.4 on."""
_UNSIGNED_UP_TO: Final = 399
"""The ordinal of `V4_9_3`, the last version that does not sign the field `_UNIQUE_KEY_QUERY`."""


def sign(fields: Mapping[str, str], body: Buffer, secret_key: str, version: int = VERSION) -> str:
    """Sign a request as a client of this version does; returns base64 of the HMAC-SHA1 under the secret.

    Java sorts names by UTF-16 units, which for ASCII names is Python's order.
    """
    unsigned = {SIGNATURE, UNIQUE_KEY_QUERY} if version <= _UNSIGNED_UP_TO else {SIGNATURE}
    values = "".join(value for name, value in sorted(fields.items()) if name not in unsigned)
    code = hmac.new(secret_key.encode(), values.encode("utf-8", "surrogatepass"), "sha1")
    code.update(body)
    return base64.b64encode(code.digest()).decode()


@frozen
class Credentials:
    """An account of the broker's `plain_acl.yml`."""

    access_key: str
    secret_key: str = field(repr=False)

    def signed(self, fields: dict[str, str] | None, body: Buffer) -> dict[str, str]:
        """Returns the extension fields of a request with the access key and the signature."""
        named = {**(fields or {}), ACCESS_KEY: self.access_key}
        return {**named, SIGNATURE: sign(named, body, self.secret_key)}
