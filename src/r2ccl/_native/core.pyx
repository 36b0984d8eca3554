# cython: language_level=3, boundscheck=False, wraparound=False
"""The Cython edge: adapt arguments, release the GIL, check. The only place that turns status codes into exceptions."""

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memset

import os
import time
from itertools import islice

from r2ccl import errors
from r2ccl.arrays import as_buffer
from r2ccl.observe.culprits import explain
from r2ccl.types import DType, ReduceOp


include "core_api.pxi"


STATUS = {
    name: getattr(errors, cls) if cls else None
    for name, cls in (
        ("OK", ""),
        ("IN_PROGRESS", ""),
        ("INVALID_ARGUMENT", "InvalidArgument"),
        ("TIMEOUT", "Timeout"),
        ("PEER_LOST", "PeerLost"),
        ("PEER_UNREACHABLE", "PeerUnreachable"),
        ("ABORTED", "Aborted"),
        ("MISMATCH", "Mismatch"),
        ("INTERNAL", "InternalError"),
        ("AGAIN", ""),
    )
}

# Why a stream is refused.
cdef str REFUSED = ("it records a graph (collectives cannot be captured: call them outside the capture), or it is no stream of "
                    "this communicator's GPU")

cdef enum:
    REAPED = 16
    SLICE_NS = 50000000
    TEXT = 4096
    MAX_RECENT = 1024

# A wait at least this long, in vain, is worth a question to the other ranks, which takes up to SURVEY_S.
cdef double ASK_AFTER_S = 0.1
cdef double SURVEY_S = 0.2

cdef enum:
    ALL_REDUCE = 0
    REDUCE = 1
    BROADCAST = 2
    ALL_GATHER = 3
    REDUCE_SCATTER = 4
    ALL_TO_ALL = 5
    GATHER = 6
    SCATTER = 7
    SEND = 8
    RECV = 9
    BARRIER = 10
    MIN = 2
    MAX = 3
    AVG = 4


cdef struct View:
    char* data
    uint64_t count
    uint32_t itemsize
    int32_t dtype


include "cuda.pxi"
include "device_arrays.pxi"
include "arrays.pxi"


def try_port(str library, str device, int port, int gid_index):
    """Why queue pairs cannot be made on an RDMA port; empty: they can."""
    cdef char data[1024]
    cdef bytes c_library = library.encode(), c_device = device.encode()
    cdef const char* name = c_library
    cdef const char* which = c_device
    cdef size_t n
    with nogil:
        n = r2ccl_try_port(name, which, port, gid_index, data, sizeof(data))
    return data[:n].decode("utf-8", "replace")


include "work.pxi"


cdef class Engine:
    """The native core of one communicator. Made by ``Communicator``; not for direct use."""

    cdef r2ccl_engine* core
    cdef int32_t rank, size
    cdef readonly CudaDevice device  # None: the host
    cdef dict plans  # of one epoch
    cdef uint32_t plans_epoch
    cdef object planner
    cdef dict orphans
    cdef int users    # threads inside a call: close() ends their calls
    cdef int lookers  # threads that only look: close() waits for them
    cdef uint64_t calls
    cdef double timeout_s
    cdef str closed_error
    cdef dict sockets  # descriptor -> inode, as when it was handed over
    cdef list imported  # addresses of other ranks' memory
    cdef set kept  # of calls that have not ended
    cdef bytearray spare  # a copy's memory, for the next one

    def __cinit__(self):
        self.core = NULL

    def __init__(self, int rank, int size, config, planner, bint yield_when_spinning, CudaDevice device=None):
        """planner(collective, dtype, op, nbytes, root, in_place, given_counts, peer) -> PlanEntry;
        planner.renew(epoch, health): from now on for this health (bytes, one per rail of each rank)."""
        cdef r2ccl_settings s
        memset(&s, 0, sizeof(s))
        script = config.fault_script.encode()
        library = config.verbs_library.encode()
        s.rank = rank
        s.size = size
        s.chunk_bytes = config.chunk_bytes
        s.staging_bytes = config.staging_bytes
        s.eager_bytes = config.eager_bytes
        s.spin_ns = config.spin_us * 1000
        s.stall_floor_ns = int(config.stall_floor_ms * 1e6)
        s.heartbeat_ns = int(config.heartbeat_ms * 1e6)
        s.outage_ns = int(config.outage_s * 1e9)
        s.stall_factor = config.stall_factor
        s.failover = config.failover
        s.yield_when_spinning = yield_when_spinning
        s.trace_records = config.trace_records if config.trace else 0
        s.fault_script = script
        s.register_bytes = config.register_bytes
        s.verbs_library = library
        s.rdma_service_level = config.rdma_service_level
        s.rdma_traffic_class = config.rdma_traffic_class
        s.device = device.get() if device is not None else NULL
        self.device = device
        self.core = r2ccl_engine_create(&s)
        if self.core == NULL:
            raise MemoryError("r2ccl: no memory for the native core")
        self.rank = rank
        self.size = size
        self.plans = {}
        self.orphans = {}
        self.planner = planner
        self.timeout_s = config.timeout_s
        self.closed_error = "the communicator is closed"
        self.sockets = {}
        self.imported = []
        self.kept = set()
        self.spare = bytearray()

    cdef r2ccl_engine* handle(self) except NULL:
        if self.core == NULL:
            raise errors.Aborted(self.closed_error)
        return self.core

    cdef own(self, int fd):
        """The descriptor is the core's from now on; -1: there is none."""
        if fd >= 0:
            self.sockets[fd] = os.fstat(fd).st_ino

    # -- before start --------------------------------------------------------------------------------------------

    def add_rail(self, int index, str name, int ifindex, str address, double weight):
        """ifindex 0, address empty: not watched."""
        made(r2ccl_add_rail(self.handle(), index, name.encode(), ifindex, address.encode(), weight))

    def add_tcp_link(self, int peer, int rail, int fd):
        """fd -1: a link that could not be connected yet."""
        self.own(fd)
        made(r2ccl_add_tcp_link(self.handle(), peer, rail, fd))

    def set_rail_direct(self, int rail, bint direct):
        """NICs write what arrives over the rail to the GPU's memory, where they can."""
        r2ccl_set_rail_direct(self.handle(), rail, direct)

    def set_rail_port(self, int rail, str device, int port, int gid_index):
        """The RDMA port of a rail; gid_index -1: none (InfiniBand within a subnet)."""
        made(r2ccl_set_rail_port(self.handle(), rail, device.encode(), port, gid_index))

    def add_verbs_link(self, int peer, int rail, int fd):
        """Over the rail's RDMA port; fd: a TCP connection between the rails. -1: it could not be connected yet."""
        self.own(fd)
        made(r2ccl_add_verbs_link(self.handle(), peer, rail, fd))

    def add_shm_link(self, int peer, int memfd, uint64_t ring_bytes):
        if r2ccl_add_shm_link(self.handle(), peer, memfd, ring_bytes, self.rank < peer) != R2CCL_OK:
            raise errors.InternalError(f"cannot map the shared memory of rank {peer}")

    def add_control(self, int peer, int fd, bint same_host):
        self.own(fd)
        made(r2ccl_add_control(self.handle(), peer, fd, same_host))

    def set_host(self, int peer, int host):
        """Peers of one host have the same number."""
        made(r2ccl_set_host(self.handle(), peer, host))

    def set_shares(self, int peer, rows):
        """rows: (links + 1) x links float64, see ``plan.shares``."""
        cdef const double[::1] flat = rows.reshape(-1)
        made(r2ccl_set_shares(self.handle(), peer, &flat[0], rows.shape[1]))

    def window_bytes(self, int peer):
        """Memory of a window that the peer's GPU may write to; 0: none with this peer."""
        return r2ccl_window_bytes(self.handle(), peer)

    def set_window(self, int peer, uintptr_t own, uintptr_t theirs):
        """own: the engine's from now on; theirs: closed when the engine is. 0: none."""
        if theirs:
            self.imported.append(theirs)
        made(r2ccl_set_window(self.handle(), peer, <void*>own, <void*>theirs))

    def set_rails(self, rails):
        """How many rails each rank has: all ranks agree on their health from then on."""
        cdef uint32_t[::1] counts = rails
        made(r2ccl_set_rails(self.handle(), &counts[0]))

    def start(self):
        if r2ccl_engine_start(self.handle()) != R2CCL_OK:
            raise errors.InternalError("the native core could not start its thread or its event queue")

    # -- calls ---------------------------------------------------------------------------------------------------

    def host_buffer(self, Py_ssize_t nbytes):
        """For what the host itself exchanges over this communicator, wherever its arrays lie."""
        self.handle()
        return HostBuffer(self.device, nbytes)

    def run(self, int collective, object send, object recv, int op, int root, bint async_op, object timeout_s,
            bint keep=False, object stream=None):
        """A collective with equal counts. Which of send and recv are needed depends on the collective and the rank.

        keep: if the call is in place and fails, its array holds its input again.
        stream: that the call is ordered on, as a number; None: the host waits.
        """
        cdef View s, r
        cdef uint64_t total, block
        cdef bint in_place = False
        cdef int32_t dtype
        cdef uint32_t itemsize
        memset(&s, 0, sizeof(s))
        memset(&r, 0, sizeof(r))
        if send is not None:
            view_of(self.device, send, collective == BROADCAST and recv is None, "send", &s)
        if recv is send:
            r = s
            if recv is not None:
                view_of(self.device, recv, True, "recv", &r)
        elif recv is not None:
            view_of(self.device, recv, True, "recv", &r)
        if send is not None and recv is not None and s.dtype != r.dtype:
            raise errors.InvalidArgument(
                f"send is {DType(s.dtype).name.lower()} and recv is {DType(r.dtype).name.lower()}: they must be equal")
        dtype = s.dtype if send is not None else r.dtype
        itemsize = s.itemsize if send is not None else r.itemsize
        if root >= self.size:
            raise errors.InvalidArgument(f"root = {root}: this communicator has ranks 0 to {self.size - 1}")

        if collective == ALL_REDUCE or collective == REDUCE or collective == BROADCAST:
            total = s.count if send is not None else r.count
            if send is not None and recv is not None and s.count != r.count:
                raise errors.InvalidArgument(f"send has {s.count} elements and recv has {r.count}: they must be equal")
            if send is not None and recv is not None:
                in_place = s.data == r.data
                if not in_place:
                    check_apart(s.data, total * itemsize, r.data, total * itemsize)
        elif collective == ALL_GATHER or collective == GATHER:
            total = s.count * self.size
            if recv is not None:
                if r.count != total:
                    raise errors.InvalidArgument(
                        f"recv has {r.count} elements; {self.size} ranks x {s.count} of send make {total}")
                block = s.count * itemsize
                in_place = s.data == r.data + self.rank * block
                if not in_place:
                    check_apart(s.data, block, r.data, total * itemsize)
        elif collective == REDUCE_SCATTER or collective == SCATTER:
            total = r.count * self.size
            if send is not None:
                if s.count != total:
                    raise errors.InvalidArgument(
                        f"send has {s.count} elements; {self.size} ranks x {r.count} of recv make {total}")
                block = r.count * itemsize
                in_place = r.data == s.data + self.rank * block
                if not in_place:
                    check_apart(r.data, block, s.data, total * itemsize)
        else:  # ALL_TO_ALL
            total = s.count
            if s.count != r.count or s.count % self.size:
                raise errors.InvalidArgument(
                    f"send has {s.count} and recv {r.count} elements: both need the same multiple of {self.size} ranks")
            if self.device is None or s.data != r.data:
                check_apart(s.data, total * itemsize, r.data, total * itemsize)
        work = self.prepare(keep and (in_place or collective == ALL_TO_ALL), collective, send, recv, &s, &r, stream)
        return self.submit(work, collective, send, recv, &s, &r, dtype, itemsize, op, root, in_place, total, total, None,
                           None, -1, async_op, timeout_s)

    def run_given(self, int collective, object send, object recv, int op, object cuts_send, object cuts_recv,
                  bint in_place, bint async_op, object timeout_s, bint keep=False, object stream=None):
        """A collective whose counts are given: cuts are size + 1 element offsets (uint64), checked by the caller."""
        cdef View s, r
        view_of(self.device, send, False, "send", &s)
        view_of(self.device, recv, True, "recv", &r)
        cuts_recv = cuts_send if cuts_recv is None else cuts_recv
        work = self.prepare(keep and in_place, collective, send, recv, &s, &r, stream)
        return self.submit(work, collective, send, recv, &s, &r, s.dtype, s.itemsize, op, -1, in_place,
                           int(cuts_send[-1]), int(cuts_recv[-1]), cuts_send, cuts_recv, -1, async_op, timeout_s)

    def run_p2p(self, int collective, object array, int peer, bint async_op, object timeout_s, object stream=None):
        cdef View v
        view_of(self.device, array, collective == RECV, "buf", &v)
        if peer < 0 or peer >= self.size or peer == self.rank:
            raise errors.InvalidArgument(f"peer = {peer}: another rank from 0 to {self.size - 1} (this is rank {self.rank})")
        work = self.prepare(False, collective, array, array, &v, &v, stream)
        return self.submit(work, collective, array, array, &v, &v, v.dtype, v.itemsize, 0, -1, False, v.count, v.count,
                           None, None, peer, async_op, timeout_s)

    def barrier(self, object timeout_s, object stream=None):
        cdef View v
        memset(&v, 0, sizeof(v))
        work = self.prepare(False, BARRIER, None, None, &v, &v, stream)
        return self.submit(work, BARRIER, None, None, &v, &v, 0, 1, 0, -1, False, 0, 0, None, None, -1, False, timeout_s)

    cdef Work prepare(self, bint keep, int collective, object send, object recv, View* s, View* r, object stream):
        """A handle for a call that is about to begin; keep: with a copy of what the call overwrites of its input."""
        cdef Work work = Work.__new__(Work)
        cdef View* v = s if collective == REDUCE_SCATTER else r
        cdef char* target
        cdef uint64_t n = v.count * v.itemsize
        work.engine = self
        work.stream = stream
        if self.device is not None:
            if collective == ALL_TO_ALL and s.data == r.data:
                work.keep_flags = R2CCL_KEEP_SEND
            if keep and collective in (ALL_REDUCE, REDUCE, REDUCE_SCATTER, ALL_TO_ALL):
                work.keep_flags |= R2CCL_KEEP_RESTORE
            if work.keep_flags:
                work.keeps = v[0]
            return work
        if keep and n and collective in (ALL_REDUCE, REDUCE, REDUCE_SCATTER, ALL_TO_ALL):
            work.kept = Kept.__new__(Kept)
            work.kept.data = v.data
            work.kept.nbytes = n
            work.kept.array = send if collective == REDUCE_SCATTER else recv
            work.kept.copy, self.spare = self.spare, bytearray()
            if <uint64_t>len(work.kept.copy) < n:
                work.kept.copy = bytearray(n)
            target = work.kept.copy
            with nogil:
                memcpy(target, v.data, n)
        return work

    cdef settle_kept(self, Kept kept, int32_t status):
        """The call has ended: its input is put back if it failed."""
        if kept is None or kept not in self.kept:
            return
        self.kept.discard(kept)
        if status != R2CCL_OK:
            kept.restore()
        if len(kept.copy) > len(self.spare):
            self.spare = kept.copy
        kept.copy = kept.array = None

    cdef Work submit(self, Work work, int collective, object send, object recv, View* s, View* r, int32_t dtype,
                     uint32_t itemsize, int op, int root, bint in_place, uint64_t count0, uint64_t count1, object cuts0,
                     object cuts1, int peer, bint async_op, object timeout_s):
        cdef r2ccl_call_args a
        cdef const uint64_t[::1] c0, c1
        cdef uint64_t nbytes = count0 * itemsize
        cdef uint64_t bits = 0, ticket = 0
        cdef int32_t status
        cdef uintptr_t handle
        cdef r2ccl_engine* core
        cdef PlanEntry entry
        if collective == ALL_REDUCE or collective == REDUCE or collective == REDUCE_SCATTER:
            check_reducible(dtype, op)
        if self.orphans:
            self.reap()
        while nbytes >> bits:
            bits += 1
        key = (<uint64_t>collective | <uint64_t>dtype << 8 | <uint64_t>(op == AVG or op <= 1) << 16
               | <uint64_t>in_place << 17 | <uint64_t>(cuts0 is not None) << 18 | bits << 20
               | <uint64_t>(<uint32_t>(root if peer < 0 else peer) + 1) << 28)
        memset(&a, 0, sizeof(a))
        a.info.count = count0 if cuts0 is None else 0
        # A sender and its receiver make the same call, seen from two sides.
        a.info.collective = SEND if collective == RECV else collective
        a.info.root = root
        a.info.dtype = dtype
        a.info.op = op
        a.info.flags = cuts0 is not None
        a.send = s.data
        a.recv = r.data
        a.count[0] = count0
        a.count[1] = count1
        if cuts0 is not None:
            c0 = cuts0
            c1 = cuts1
            a.cuts[0] = &c0[0]
            a.cuts[1] = &c1[0]
        a.avg_ranks = self.size if op == AVG else 0
        a.peer = peer
        work.refs = (send, recv)
        work.timeout_s = self.timeout_s if timeout_s is None else timeout_s
        if work.keep_flags:
            a.keep_flags = work.keep_flags
            a.keep = work.keeps.data
            a.keep_bytes = work.keeps.count * work.keeps.itemsize
        if work.stream is not None:
            handle = work.stream
            a.stream = <void*>handle
            a.on_stream = 1
            a.hold = not async_op
            a.timeout_ns = <uint64_t>(work.timeout_s * 1e9) if 0 < work.timeout_s < 1e9 else 0
            async_op = True
        while True:
            entry = self.plans.get(key)
            if entry is None:
                entry = self.planner(
                    collective, dtype, op, (<uint64_t>1 << bits) >> 1, root, in_place, cuts0 is not None, peer)
                self.plans[key] = entry
            a.plan = entry.plan
            a.chunk_bytes = entry.chunk_bytes
            a.epoch = self.plans_epoch
            work.entry = entry
            core = self.handle()
            if self.device is None:
                status = r2ccl_submit(core, &a, not async_op, &ticket)
            else:  # a driver whose queues are full makes the caller wait
                self.users += 1
                with nogil:
                    status = r2ccl_submit(core, &a, not async_op, &ticket)
                self.users -= 1
            if status != R2CCL_AGAIN:
                break
            self.change_epoch(ticket, work.timeout_s)
        if status == R2CCL_INVALID_ARGUMENT and work.stream is not None:
            raise errors.InvalidArgument(f"stream = {work.stream:#x} cannot order the call: {REFUSED}")
        if status != R2CCL_OK:
            self.raise_status(status)
        work.ticket = ticket
        work.seq = self.calls
        self.calls += 1
        if work.kept is not None:
            work.kept.ticket = work.ticket
            self.kept.add(work.kept)
        if not async_op:
            self.finish(work, work.timeout_s)
            if work.status != R2CCL_OK:
                self.raise_status(work.status)
        return work

    cdef int change_epoch(self, uint64_t epoch, double timeout_s) except -1:
        """The next call needs plans of another epoch; UINT64_MAX: the ranks are agreeing on one, which is waited for."""
        cdef int32_t ready = 0
        cdef r2ccl_engine* core = self.handle()
        cdef char text[TEXT]
        cdef size_t n
        if epoch == <uint64_t>-1:
            deadline = time.monotonic() + timeout_s
            self.users += 1
            try:
                while not ready:
                    with nogil:
                        ready = r2ccl_wait_thaw(core, SLICE_NS)
                    PyErr_CheckSignals()
                    if not ready and time.monotonic() > deadline:
                        n = r2ccl_describe_freeze(core, text, TEXT)
                        raise errors.Timeout(f"after {timeout_s:g} s: {text[:n].decode()}")
            finally:
                self.users -= 1
            return 0
        health = self.health(epoch)
        if health:
            self.planner.renew(epoch, health)
        self.plans = {}
        self.plans_epoch = <uint32_t>epoch
        return 0

    cdef int finish(self, Work work, double timeout_s) except -1:
        """Waits for a call. Ctrl-C and the deadline leave it running; its arrays stay referenced."""
        cdef int32_t status
        cdef uint64_t ticket = work.ticket, slice_ns = SLICE_NS
        cdef r2ccl_engine* core = self.handle()
        cdef double deadline = -1, left
        cdef object blame = None
        if timeout_s * 1e9 < SLICE_NS:
            slice_ns = <uint64_t>(timeout_s * 1e9) if timeout_s > 0 else 1
        self.users += 1
        try:
            while True:
                with nogil:
                    status = r2ccl_wait(core, ticket, slice_ns, &work.c_replayed)
                if status != R2CCL_IN_PROGRESS:
                    break
                PyErr_CheckSignals()
                if deadline < 0:
                    deadline = time.monotonic() + timeout_s - slice_ns * 1e-9
                left = deadline - time.monotonic()
                if blame is None and left <= SURVEY_S + SLICE_NS * 1e-9 and (left <= 0 or timeout_s > 4 * SURVEY_S):
                    # Who is to blame is asked just before the deadline, so that it is kept.
                    blame = self.blamed(timeout_s)
                    left = deadline - time.monotonic()
                    if r2ccl_test(core, ticket) != R2CCL_IN_PROGRESS:
                        left = 1e-9
                if left <= 0:
                    raise errors.Timeout(f"after {timeout_s:g} s: {self.describe(ticket)}{blame or ''}")
                slice_ns = SLICE_NS if left * 1e9 > SLICE_NS else <uint64_t>(left * 1e9) + 1
        finally:
            self.users -= 1
        work.ticket = 0
        work.status = status
        work.refs = None
        self.settle_kept(work.kept, status)
        return 0

    cdef orphan(self, uint64_t ticket, object refs, Kept kept):
        if self.core != NULL:
            self.orphans[ticket] = (refs, kept)

    cdef reap(self, int most=REAPED):
        """Frees tickets that nobody waits for, and with them their arrays: looks at so many, the oldest first."""
        cdef int32_t status
        for ticket in list(islice(self.orphans, most)):
            held = self.orphans.pop(ticket)
            status = r2ccl_test(self.core, ticket)
            if status != R2CCL_IN_PROGRESS:
                self.settle_kept(held[1], status)
                r2ccl_detach(self.core, ticket)
            else:
                self.orphans[ticket] = held  # the last one now

    cdef restore_all(self, double linger_s):
        """Before the end: the calls with a kept input may still finish for a while; then their inputs are put back."""
        cdef Kept kept
        deadline = time.monotonic() + linger_s
        while time.monotonic() < deadline and r2ccl_engine_status(self.core) == R2CCL_OK and any(
                r2ccl_test(self.core, (<Kept>k).ticket) == R2CCL_IN_PROGRESS for k in self.kept):
            time.sleep(0.001)
        self.abort("the communicator is being closed")
        for kept in list(self.kept):
            self.settle_kept(kept, r2ccl_test(self.core, kept.ticket))

    cdef raise_status(self, int32_t status):
        cdef char text[TEXT]
        cdef size_t n = 0
        if self.core != NULL:
            n = r2ccl_error_text(self.core, text, TEXT)
        message = text[:n].decode("utf-8", "replace")
        raise STATUS[r2ccl_status_name(status).decode()](
            message or "the plan does not fit the counts, or there is no memory for the call")

    cdef str blamed(self, double waited_s):
        """Which rank everybody waits for, as far as the others say, as the end of a message."""
        if waited_s < ASK_AFTER_S or self.size == 1:
            return ""
        text = explain(self.survey(SURVEY_S))
        return f"; {text}" if text else ""

    def describe(self, uint64_t ticket):
        cdef char text[TEXT]
        cdef size_t n
        cdef r2ccl_engine* core = self.handle()
        self.lookers += 1
        with nogil:
            n = r2ccl_describe(core, ticket, text, TEXT)
        self.lookers -= 1
        return text[:n].decode("utf-8", "replace")

    # -- sight and end -------------------------------------------------------------------------------------------

    def survey(self, double timeout_s):
        """Reports of all ranks, JSON (``observe.reports``), within about timeout_s; 0: of this rank alone."""
        cdef r2ccl_engine* core = self.handle()
        cdef uint64_t timeout_ns = <uint64_t>(timeout_s * 1e9)
        cdef size_t n = 0
        cdef char* text
        self.lookers += 1
        with nogil:
            text = r2ccl_survey(core, timeout_ns, &n)
        self.lookers -= 1
        if text == NULL:
            raise MemoryError("r2ccl: no memory for the reports of the ranks")
        try:
            return text[:n].decode("utf-8", "replace")
        finally:
            r2ccl_free(text)

    def trace(self):
        """(records, dropped): the trace so far as bytes (``observe.records.RECORD``), and how many older ones are lost."""
        cdef r2ccl_engine* core = self.handle()
        cdef size_t n = 0
        cdef uint64_t dropped = 0
        cdef r2ccl_trace_record* records
        self.lookers += 1
        with nogil:
            records = r2ccl_trace_read(core, &n, &dropped)
        self.lookers -= 1
        if records == NULL:
            raise MemoryError("r2ccl: no memory for a copy of the trace: lower Config.trace_records")
        try:
            return (<char*>records)[:n * sizeof(r2ccl_trace_record)], dropped
        finally:
            r2ccl_free(records)

    def epoch(self):
        """Number of the agreement on the health of rails that is in force for new calls."""
        return r2ccl_epoch(self.handle())

    def health(self, uint32_t epoch):
        """Bytes, one per rail of each rank: 0 not usable, 255 whole. Empty: the epoch is not known any more."""
        cdef size_t n = r2ccl_health(self.handle(), epoch, NULL, 0)
        cdef bytearray memory = bytearray(n)
        r2ccl_health(self.handle(), epoch, <uint8_t*><char*>memory, n)
        return bytes(memory)

    def counters(self):
        cdef r2ccl_counters c
        cdef r2ccl_engine* core = self.handle()
        self.lookers += 1
        with nogil:
            r2ccl_counters_read(core, &c)
        self.lookers -= 1
        return {
            "calls": c.calls, "chunks_sent": c.chunks_sent, "chunks_received": c.chunks_received,
            "replayed_chunks": c.replayed_chunks, "duplicate_chunks": c.duplicate_chunks, "repairs": c.repairs,
            "repair_ms": c.repair_ns * 1e-6, "last_repair_ms": c.last_repair_ns * 1e-6,
            "events_dropped": c.events_dropped, "staging_bytes": c.staging_bytes, "refused_frames": c.refused_frames,
            "hedged_chunks": c.hedged_chunks,
            "relayed_chunks": c.relayed_chunks,
            "forwarded_chunks": c.forwarded_chunks,
            "window_chunks": c.window_chunks,
        }

    def links(self):
        """(peer, rail, state, generation, tx_bytes, rx_bytes, replayed_bytes, direct) of every link."""
        cdef r2ccl_engine* core = self.handle()
        cdef uint32_t n, i
        self.lookers += 1
        with nogil:
            n = r2ccl_links_read(core, NULL, 0)
        self.lookers -= 1
        cdef bytearray memory = bytearray(sizeof(r2ccl_link_stats) * (n + 1))
        cdef r2ccl_link_stats* stats = <r2ccl_link_stats*><char*>memory
        self.lookers += 1
        with nogil:
            r2ccl_links_read(core, stats, n)
        self.lookers -= 1
        return [(stats[i].peer, stats[i].rail, stats[i].state, stats[i].generation, stats[i].tx_bytes,
                 stats[i].rx_bytes, stats[i].replayed_bytes, stats[i].direct != 0) for i in range(n)]

    def wait_links_down(self, double timeout_s):
        """Sleeps until links went down or rails changed, at most timeout_s; how many links are down."""
        cdef r2ccl_engine* core = self.handle()
        cdef uint64_t timeout_ns = <uint64_t>(timeout_s * 1e9)
        cdef uint32_t n
        self.users += 1
        try:
            with nogil:
                n = r2ccl_wait_links_down(core, timeout_ns)
        finally:
            self.users -= 1
        return n

    def reopen_link(self, int peer, int link, int fd):
        """Hands over a new connection of a link that is down; the descriptor is the core's. False: it is not down."""
        cdef r2ccl_engine* core = self.handle()
        cdef int32_t status
        self.own(fd)
        with nogil:
            status = r2ccl_reopen_link(core, peer, link, fd)
        return status == R2CCL_OK

    def set_rail_identity(self, int rail, int ifindex, str address):
        """The interface of a rail was removed and added again, or has another address."""
        cdef bytes text = address.encode()
        cdef const char* c_text = text
        cdef r2ccl_engine* core = self.handle()
        with nogil:
            r2ccl_set_rail_identity(core, rail, ifindex, c_text)

    def take_probes(self):
        """(peer, link) of failed links whose rails no other link can vouch for; ``report_probe`` is expected."""
        cdef r2ccl_probe p[64]
        cdef uint32_t n = r2ccl_take_probes(self.handle(), p, 64)
        return [(p[i].peer, p[i].link) for i in range(n)]

    def report_probe(self, int peer, int link, int mine, int theirs):
        """What is known of the rails at both ends: 0 nothing, 1 alive, 2 dead."""
        cdef r2ccl_probe p
        cdef r2ccl_engine* core = self.handle()
        p.peer = peer
        p.link = link
        p.mine = mine
        p.theirs = theirs
        with nogil:
            r2ccl_report_probe(core, &p)

    def register(self, object array):
        """(address, bytes) of an array's memory, which NICs may read where it lies until ``unregister``."""
        cdef View v
        cdef int32_t status
        cdef size_t nbytes
        cdef r2ccl_engine* core = self.handle()
        memset(&v, 0, sizeof(v))
        view_of(self.device, array, False, "array", &v)
        if self.device is not None:  # NICs read pinned host memory, which the core registers itself
            return <uintptr_t>v.data, 0
        nbytes = v.count * v.itemsize
        with nogil:
            status = r2ccl_register(core, v.data, nbytes)
        made(status)
        return <uintptr_t>v.data, nbytes

    def unregister(self, uintptr_t address, size_t nbytes):
        """Nothing is left to do when the core is closed."""
        cdef r2ccl_engine* core = self.core
        if core == NULL or nbytes == 0:
            return
        with nogil:
            r2ccl_unregister(core, <const void*>address, nbytes)

    def take_warnings(self):
        """What the log should say of devices and limits."""
        cdef char data[1024]
        cdef size_t n
        found = []
        while True:
            n = r2ccl_take_warning(self.handle(), data, sizeof(data))
            if n == 0:
                return found
            found.append(data[:n].decode("utf-8", "replace"))

    def post_note(self, int peer, bytes note):
        """A message to the slow loop of a peer; it may come twice."""
        cdef const char* data = note
        cdef uint32_t size = <uint32_t>len(note)
        cdef r2ccl_engine* core = self.handle()
        with nogil:
            r2ccl_post_note(core, peer, data, size)

    def take_notes(self):
        """(peer, bytes) of the messages that have come."""
        cdef char data[R2CCL_NOTE_BYTES]
        cdef int32_t peer = -1
        cdef uint32_t n
        notes = []
        while True:
            n = r2ccl_take_note(self.handle(), &peer, data)
            if n == 0:
                return notes
            notes.append((peer, data[:n]))

    def events(self):
        """Takes the events since the last time: (time_ns, kind, peer, rail, detail, value)."""
        cdef r2ccl_event e[64]
        cdef uint32_t n, i
        out = []
        while True:
            n = r2ccl_events_read(self.handle(), e, 64)
            for i in range(n):
                out.append((e[i].time_ns, e[i].kind, e[i].peer, e[i].rail, e[i].detail, e[i].value))
            if n < 64:
                return out

    def recent_events(self, int count):
        """The last events, at most 1024, taken or not; takes none."""
        cdef r2ccl_event e[MAX_RECENT]
        cdef uint32_t n, i
        n = r2ccl_events_recent(self.handle(), e, min(count, MAX_RECENT))
        return [(e[i].time_ns, e[i].kind, e[i].peer, e[i].rail, e[i].detail, e[i].value) for i in range(n)]

    def status(self):
        return r2ccl_status_name(r2ccl_engine_status(self.handle())).decode()

    def check(self):
        """Raises the error that the engine is in, if any."""
        cdef int32_t status = r2ccl_engine_status(self.handle())
        if status != R2CCL_OK:
            self.raise_status(status)

    def abort(self, str reason):
        cdef bytes text = reason.encode()
        cdef const char* c_text = text
        cdef r2ccl_engine* core = self.handle()
        with nogil:
            r2ccl_abort(core, c_text)
        self.reap(len(self.orphans))

    def wake_slow_loop(self):
        """Ends a ``wait_links_down``."""
        if self.core != NULL:
            r2ccl_wake_slow_loop(self.core)

    def peer_ended(self, int peer):
        """The process of a rank is known to have ended."""
        cdef r2ccl_engine* core = self.handle()
        with nogil:
            r2ccl_peer_ended(core, peer)

    def quiet_peers(self):
        """(rank, whether its control socket was closed) of ranks to which another control socket is wanted."""
        cdef r2ccl_engine* core = self.handle()
        cdef bytearray memory = bytearray(sizeof(r2ccl_quiet_peer) * self.size)
        cdef r2ccl_quiet_peer* quiet = <r2ccl_quiet_peer*><char*>memory
        cdef uint32_t n, i
        with nogil:
            n = r2ccl_quiet_peers(core, quiet, self.size)
        return [(quiet[i].peer, quiet[i].reset != 0) for i in range(n)]

    def adopt_control(self, int peer, int fd):
        """Another control socket to a rank; the descriptor is the core's. False: it is not wanted any more."""
        cdef r2ccl_engine* core = self.handle()
        cdef int32_t status
        self.own(fd)
        with nogil:
            status = r2ccl_adopt_control(core, peer, fd)
        return status == R2CCL_OK

    def lost_ranks(self):
        """The ranks that ended or closed their communicators, as far as this rank knows."""
        cdef r2ccl_engine* core = self.handle()
        cdef bytearray memory = bytearray(sizeof(int32_t) * self.size)
        cdef int32_t* ranks = <int32_t*><char*>memory
        cdef uint32_t n, i
        with nogil:
            n = r2ccl_lost_ranks(core, ranks, self.size)
        return [ranks[i] for i in range(n)]

    def close(self, double linger_s):
        """Idempotent and bounded. Calls under way in other threads end with Aborted."""
        cdef r2ccl_engine* core = self.core
        cdef uint64_t linger_ns = <uint64_t>(linger_s * 1e9)
        if core == NULL:
            return
        if self.users > 0:
            self.abort("the communicator is being closed")
        deadline = time.monotonic() + 5.0
        while self.users + self.lookers > 0 and time.monotonic() < deadline:
            time.sleep(0.001)
        if self.users + self.lookers > 0:
            return  # a thread is still inside: leak rather than crash
        if self.kept:
            self.restore_all(linger_s)
        self.core = NULL
        with nogil:
            r2ccl_engine_destroy(core, linger_ns)
        for address in self.imported:
            self.device.close_imported(address)
        self.imported.clear()
        self.orphans.clear()
        self.plans.clear()
        self.sockets.clear()
        self.kept.clear()

    def forget(self):
        """In a process that was forked off: the engine is the parent's, and has no thread here. Says nothing to anybody.

        The sockets are closed, so that peers notice the parent's end while this process lives on. A descriptor may have
        been closed and used again since, hence the look at the inode.
        """
        self.core = NULL
        self.closed_error = "the communicator belongs to the process that made it; this one was forked from it"
        for fd, inode in self.sockets.items():
            try:
                if os.fstat(fd).st_ino == inode:
                    os.close(fd)
            except OSError:
                pass

    def __dealloc__(self):
        if self.core != NULL:
            with nogil:
                r2ccl_engine_destroy(self.core, 0)


cdef int made(int32_t status) except -1:
    if status != R2CCL_OK:
        raise MemoryError("r2ccl: no memory for a connection")
    return 0
