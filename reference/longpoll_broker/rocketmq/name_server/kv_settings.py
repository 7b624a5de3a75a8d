"""Settings by namespace and key that a name server keeps for tools (`mqadmin updateKvConfig`, `updateOrderConf`).

They are lost at the end of the name server; RocketMQ saves them in `kvConfig.json`.

Source: `KVConfigManager.java`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from attrs import define, field

from longpoll_broker.shared.quota import Quota

SETTING_COUNT_MAX: Final = 10_000
"""Maximum settings; any client may create one."""
NAME_SIZE_MAX: Final = 255
"""Maximum characters of a namespace, and of a key."""
VALUE_SIZE_MAX: Final = 4096
"""Maximum characters of a value: the order of a topic with a hundred brokers."""


@define(slots=True, eq=False)
class KvSettings:
    """Every setting; used by one thread."""

    quota: Quota = field(factory=lambda: Quota("settings", SETTING_COUNT_MAX), init=False)
    _values: dict[tuple[str, str], str] = field(factory=dict, init=False)

    def put(self, namespace: str, key: str, value: str, channel: Hashable = None) -> str | None:
        """Store a setting; returns why it cannot be stored, or None."""
        if max(len(namespace), len(key)) > NAME_SIZE_MAX:
            return f"the namespace or the key is longer than {NAME_SIZE_MAX} characters"
        if len(value) > VALUE_SIZE_MAX:
            return f"the value has {len(value)} characters, over the limit of {VALUE_SIZE_MAX}"
        if not self.quota.take((namespace, key), channel):
            return f"there are {self.quota.used} settings already; delete one first"
        self._values[namespace, key] = value
        return None

    def get(self, namespace: str, key: str) -> str | None:
        """Returns a setting's value, or None."""
        return self._values.get((namespace, key))

    def of(self, namespace: str) -> dict[str, str]:
        """Returns the settings of a namespace, by key."""
        return {key: value for (each, key), value in self._values.items() if each == namespace}

    def remove(self, namespace: str, key: str) -> None:
        """Remove a setting, if it exists."""
        self._values.pop((namespace, key), None)
        self.quota.release((namespace, key))
