"""Every exception of the broker and its store, one class a fault.

Leaves out what is wrong with bytes and values (`longpoll_protocol.errors`) and with settings (`ConfigError`).
"""

from longpoll_spec.errors import LongpollError, UserError


class BrokerError(LongpollError):
    """Whatever the broker's own code raises on purpose."""


class BrokerUserError(BrokerError, UserError):
    """The user asked the broker for something that cannot be; the text says what to do next."""


class StoreError(BrokerError):
    """A store directory or file cannot be used."""


class StoreUserError(StoreError, BrokerUserError):
    """The named store directory is not there, not a store, or in use."""


class TopicLeavingError(StoreError, OSError):
    """Something was put into a topic that is being deleted at this moment; it can be put there soon after."""


class SyncFailedError(StoreError, OSError):
    """A sync failed before, and a later one would not say what the disk lacks; opening the store writes it anew."""


class StoreDamageError(StoreError):
    """Bytes in a store file are not what they must be: names file, offset, found and expected."""
