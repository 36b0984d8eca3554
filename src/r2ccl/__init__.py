"""Collective communication over several NICs that outlives the loss of a NIC.

``init`` makes a Communicator; the rest are the values it takes and gives.
"""

from ._native.core import Work
from .communicator import Communicator, init
from .config import Config
from .errors import (
    Aborted,
    BootstrapError,
    InternalError,
    InvalidArgument,
    Mismatch,
    NoRails,
    PeerLost,
    PeerUnreachable,
    R2cclError,
    Timeout,
)
from .observe.events import Cause, Event, EventKind
from .types import DType, ReduceOp

__version__ = "0.1.0"

__all__ = [
    "Aborted",
    "BootstrapError",
    "Cause",
    "Communicator",
    "Config",
    "DType",
    "Event",
    "EventKind",
    "InternalError",
    "InvalidArgument",
    "Mismatch",
    "NoRails",
    "PeerLost",
    "PeerUnreachable",
    "R2cclError",
    "ReduceOp",
    "Timeout",
    "Work",
    "init",
]
