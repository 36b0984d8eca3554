"""Exceptions of the public API, one per status code of the native core."""

from __future__ import annotations


class R2cclError(RuntimeError):
    """Base class of every error that r2ccl raises."""


class InvalidArgument(R2cclError, ValueError):
    """An argument is unusable. Raised before anything is sent; nothing has changed."""


class Timeout(R2cclError, TimeoutError):
    """A deadline passed. The message names who was waited for."""


class PeerLost(R2cclError, ConnectionError):
    """A rank is gone (its process ended). The message names it."""


class PeerUnreachable(R2cclError, ConnectionError):
    """A rank lives, as far as is known, but no rail leads to it any more."""


class Aborted(R2cclError):
    """The communicator was aborted or closed while the call was running."""


class Mismatch(R2cclError):
    """Ranks disagree on the operation, size, dtype, root or order of a call."""


class BootstrapError(R2cclError):
    """Ranks could not find or authenticate each other at start."""


class NoRails(R2cclError):
    """Two hosts share no usable rail. The message lists the candidates and why each was left out."""


class InternalError(R2cclError):
    """A bug in r2ccl: an invariant of the core does not hold."""
