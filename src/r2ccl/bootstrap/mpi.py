"""Bootstrap from an mpi4py communicator. MPI carries a few small messages during the start and nothing afterwards."""

from __future__ import annotations

import secrets
import time
from typing import Any

from mpi4py import MPI

from ..errors import BootstrapError, Timeout
from .base import MAX_VALUE_BYTES, Deadline, check_value, name_ranks

_TAG = 21042  # MPI guarantees tags up to 32767
_KEY_BYTES = 32
_TEXT_BYTES = 512
_POLL_S = 0.0005
_GRACE_S = 2.0
# MPI may still write into the buffers of a request that was given up, whenever the late rank comes; and a collective
# request can be neither cancelled nor freed. So these must outlive everything; the job is lost at this point anyway.
_ABANDONED: list[Any] = []


class MpiBootstrap:
    """See ``Bootstrap``. ``comm`` is an intra-communicator; it stays the caller's.

    Every MPI call is non-blocking and polled, so that a rank that never comes costs the deadline, not for ever.
    ``Timeout`` names the missing ranks. The secret travels by MPI, whose network is trusted as far as the job is.
    """

    local_hint: str | None = None

    def __init__(self, comm: Any, deadline: Deadline) -> None:
        if not MPI.Is_initialized() or MPI.Is_finalized():
            raise BootstrapError("MPI is not running: call r2ccl.init between MPI_Init and MPI_Finalize")
        if comm == MPI.COMM_NULL or comm.Is_inter():
            raise BootstrapError("r2ccl.init needs an intra-communicator of MPI that this process belongs to")
        self._comm = comm
        self.rank = int(comm.Get_rank())
        self.size = int(comm.Get_size())
        self._arrive("init", deadline)
        key = bytearray(secrets.token_bytes(_KEY_BYTES) if self.rank == 0 else _KEY_BYTES)
        self._wait(comm.Ibcast([key, MPI.BYTE], root=0), deadline, "init: the job's key")
        self.secret = bytes(key)

    def all_gather(self, tag: str, value: bytes, deadline: Deadline) -> list[bytes]:
        """See ``Bootstrap.all_gather``."""
        check_value(tag, value)
        self._arrive(tag, deadline)
        own = bytearray(len(value).to_bytes(4, "little"))
        raw = bytearray(4 * self.size)
        self._wait(self._comm.Iallgather([own, MPI.BYTE], [raw, MPI.BYTE]), deadline, f"{tag}: lengths")
        lengths = [int.from_bytes(raw[4 * r : 4 * r + 4], "little") for r in range(self.size)]
        if max(lengths) > MAX_VALUE_BYTES:
            raise BootstrapError(f"{tag}: a rank announces {max(lengths)} bytes; at most {MAX_VALUE_BYTES}")
        offsets = [sum(lengths[:r]) for r in range(self.size)]
        data = bytearray(sum(lengths))
        request = self._comm.Iallgatherv([bytearray(value), MPI.BYTE], [data, lengths, offsets, MPI.BYTE])
        self._wait(request, deadline, f"{tag}: values")
        return [bytes(data[at : at + length]) for at, length in zip(offsets, lengths, strict=True)]

    def close(self) -> None:
        """Nothing to release: the communicator is the caller's."""

    def _arrive(self, tag: str, deadline: Deadline) -> None:
        """A barrier through rank 0, which can therefore tell who is missing at the deadline."""
        if self.rank:
            self._arrive_at_rank_0(tag, deadline)
            return
        arrivals = {r: self._comm.Irecv([bytearray(0), MPI.BYTE], source=r, tag=_TAG) for r in range(1, self.size)}
        missing = dict(arrivals)
        while missing and not deadline.expired:
            missing = {r: request for r, request in missing.items() if not request.Test()}
            if missing:
                time.sleep(_POLL_S)
        text = ""
        if missing:
            text = f"{tag}: {name_ranks(sorted(missing), self.size)} did not arrive within {deadline.seconds:g} s"
        body = bytearray(text.encode()[:_TEXT_BYTES])
        answers = [self._comm.Isend([body, MPI.BYTE], dest=r, tag=_TAG) for r in arrivals if r not in missing]
        end = Deadline(deadline.remaining() + _GRACE_S)
        for request in answers:
            self._wait(request, end, f"{tag}: the answer of rank 0")
        for request in missing.values():
            request.Cancel()
            request.Free()
        if text:
            raise Timeout(text)

    def _arrive_at_rank_0(self, tag: str, deadline: Deadline) -> None:
        # Rank 0 names the missing ranks at its own deadline, which may be a little later than this one.
        end = Deadline(deadline.remaining() + _GRACE_S)
        absent = f"{tag}: rank 0 of {self.size} did not answer"
        self._wait(self._comm.Isend([bytearray(0), MPI.BYTE], dest=0, tag=_TAG), end, absent)
        text = bytearray(_TEXT_BYTES)
        status = MPI.Status()
        self._wait(self._comm.Irecv([text, MPI.BYTE], source=0, tag=_TAG), end, absent, status)
        if status.Get_count(MPI.BYTE):
            raise Timeout(text[: status.Get_count(MPI.BYTE)].decode(errors="replace"))

    @staticmethod
    def _wait(request: Any, deadline: Deadline, what: str, status: Any = None) -> None:
        while not request.Test(status):
            if deadline.expired:
                _ABANDONED.append(request)
                deadline.check(what)
            time.sleep(_POLL_S)
