"""The bootstrap of survivors: a store at the one that leads, over the connections by which the others came."""

from __future__ import annotations

from ..errors import PeerLost
from .auth import derive
from .base import Bootstrap, Deadline, SingleBootstrap
from .group import Group
from .store import Store
from .tcp import StoreClient, StoreOwner

_NEWS_S = 1.0


def star_bootstrap(group: Group, me: int, secret: bytes, deadline: Deadline) -> Bootstrap:
    """The bootstrap of old rank ``me``, with the ranks of the new communicator. Takes over the group's sockets.

    secret: of the communicator that shrinks. ``PeerLost`` when the leader has ended already.
    """
    members = group.members
    key = derive(secret, "shrink", group.nonce + repr(members).encode())
    if len(members) == 1:
        return SingleBootstrap(key)
    if me == members[0]:
        return StarLeader(group, key)
    return StarMember(group, me, key, deadline)


class StarLeader(StoreOwner):
    """Rank 0 of the new communicator."""

    def __init__(self, group: Group, secret: bytes) -> None:
        self.size = len(group.members)
        self.secret = secret
        self._store = Store([], self.size, secret, b"", group.nonce, tell_lost=True)
        for new, old in enumerate(group.members[1:], 1):
            if old in group.sockets:
                self._store.adopt(new, group.sockets.pop(old))
            else:
                self._store.left(new, "ended as soon as it had come")

    def check(self) -> None:
        """See ``Watchful``."""
        if self._store.lost:
            raise PeerLost(self._store.lost)


class StarMember(StoreClient):
    """Every other rank of the new communicator."""

    def __init__(self, group: Group, me: int, secret: bytes, deadline: Deadline) -> None:
        sock = group.sockets.pop(group.members[0])
        sock.setblocking(True)
        super().__init__(sock, group.members.index(me), len(group.members))
        self.secret = secret
        try:
            self.welcome(deadline)
        except BaseException:
            self.close()
            raise

    def check(self) -> None:
        """See ``Watchful``."""
        if self.has_news():
            self.welcome(Deadline(_NEWS_S))  # nothing is due: it is the news of a loss, which is raised
