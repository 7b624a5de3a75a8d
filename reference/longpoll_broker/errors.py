"""Exceptions of the broker and its store, one class per fault.

Faulty bytes and values: see `longpoll_protocol.errors`. Settings: see `ConfigError`.
"""

from longpoll_spec.errors import LongpollError, UserError


class BrokerError(LongpollError):
    """Base class of the errors that the broker raises."""


class BrokerUserError(BrokerError, UserError):
    """A mistake of the user; the text gives the next step."""


class StoreError(BrokerError):
    """A store directory or file cannot be used."""


class StoreUserError(StoreError, BrokerUserError):
    """The store directory does not exist, is not a store, or is in use."""


class TopicLeavingError(StoreError, OSError):
    """A topic is being deleted, so it takes no writes; a write can be retried soon."""


class SyncFailedError(StoreError, OSError):
    """An earlier sync failed, so a later one would not report the lost data; reopening the store rewrites the data."""


class StoreDamageError(StoreError):
    """A store file has wrong bytes; the text names file, offset, expected and found bytes."""
