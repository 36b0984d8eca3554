"""How ``Communicator.split`` starts a new communicator: the ranks of a group find each other through the parent."""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import TYPE_CHECKING

from .bootstrap.base import MAX_VALUE_BYTES, Deadline
from .errors import BootstrapError

if TYPE_CHECKING:
    from .communicator import Communicator

_LENGTH = struct.Struct("<Q")


class SubgroupBootstrap:
    """A Bootstrap over send and recv of the parent, which stays usable by the other groups meanwhile."""

    def __init__(self, parent: Communicator, members: tuple[int, ...], secret: bytes, local_hint: str | None) -> None:
        """members: ranks of the parent, in the order of the new ranks."""
        self._parent = parent
        self._members = members
        self._rank = members.index(parent.rank)
        self._secret = secret
        self._hint = local_hint

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return len(self._members)

    @property
    def secret(self) -> bytes:
        return self._secret

    @property
    def local_hint(self) -> str | None:
        return self._hint

    def all_gather(self, tag: str, value: bytes, deadline: Deadline) -> list[bytes]:
        """Lengths first, then the values; every member to every other."""
        lengths = self._exchange([_LENGTH.pack(len(value))] * self.size, [_LENGTH.size] * self.size, deadline)
        sizes = [_LENGTH.unpack(raw)[0] for raw in lengths]
        if max(sizes) > MAX_VALUE_BYTES:
            raise BootstrapError(f"{tag}: a rank announced {max(sizes)} bytes, more than {MAX_VALUE_BYTES}")
        return self._exchange([value] * self.size, sizes, deadline)

    def close(self) -> None:
        """Nothing to release: the parent stays."""

    def _exchange(self, out: list[bytes], sizes: list[int], deadline: Deadline) -> list[bytes]:
        buffer = self._parent.host_buffer
        received = [buffer(n) for n in sizes]
        memoryview(received[self._rank])[:] = out[self._rank]
        works = []
        for other, peer in enumerate(self._members):
            if other == self._rank:
                continue
            sent = buffer(len(out[other]))
            memoryview(sent)[:] = out[other]
            works.append(self._parent.send(sent, peer, async_op=True))
            works.append(self._parent.recv(received[other], peer, async_op=True))
        for work in works:
            work.synchronize(deadline.remaining())
        return [bytes(r) for r in received]


def derive_secret(parent: bytes, number: int, color: int) -> bytes:
    """The group's own key: different for each split and each color."""
    return hmac.new(parent, f"split {number} {color}".encode(), hashlib.sha256).digest()
