"""Exceptions of the broker and its store, one class per kind of fault.

For invalid bytes and values see `longpoll_protocol.errors`, and for invalid settings see `ConfigError`.
"""

from longpoll_spec.errors import LongpollError, UserError


class BrokerError(LongpollError):
    """Base class of the errors that the broker raises."""


class BrokerUserError(BrokerError, UserError):
    """An error that the user can correct; the message says how."""


class StoreError(BrokerError):
    """A store directory or file cannot be used."""


class StoreUserError(StoreError, BrokerUserError):
    """The store directory does not exist, is not a store, or is in use."""


class TopicLeavingError(StoreError, OSError):
    """A topic is being deleted, so it accepts no writes. The write can be retried soon."""


class SyncFailedError(StoreError, OSError):
    """An earlier sync failed, and a later sync would hide that data was lost. Reopening the store rewrites the data."""


class StoreDamageError(StoreError):
    """A store file has wrong bytes; the message names the file, the offset, and the expected and found bytes."""
