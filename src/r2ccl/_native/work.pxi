# Plans and calls as Python holds them; part of core.pyx.

cdef class PlanEntry:
    """A plan in the core's form, with what a call needs to know about it."""

    cdef r2ccl_plan* plan
    cdef readonly object source
    cdef readonly str algorithm
    cdef readonly uint64_t chunk_bytes

    def __cinit__(self):
        self.plan = NULL

    def __init__(self, source, int size, uint64_t chunk_bytes):
        """source: a ``plan.ir.Plan``; chunk_bytes: upper limit of a chunk for calls that use it."""
        cdef r2ccl_plan_desc d
        cdef uint64_t[::1] weights
        cdef const uint8_t[::1] ops = source.ops.view("u1").reshape(-1) if len(source.ops) else b"\0"
        cdef const uint8_t[::1] deps = source.deps.view("u1").reshape(-1) if len(source.deps) else b"\0"
        import numpy as np

        memset(&d, 0, sizeof(d))
        cumulative = np.zeros(len(source.space0.weights) + 1, np.uint64)
        np.cumsum(np.asarray(source.space0.weights, np.uint64), out=cumulative[1:])
        weights = cumulative
        d.lanes = source.lanes
        d.op_count = len(source.ops)
        d.dep_count = len(source.deps)
        d.blocks = len(source.space0.weights)
        d.split[0] = source.space0.split
        d.split[1] = source.space1.split if source.space1 is not None else source.space0.split
        d.recv_space = 1 if source.space1 is not None else 0
        d.wide = source.wide
        d.paced = source.paced
        for i, window in enumerate((source.send_window, source.recv_window, source.scratch_window)):
            d.window[i][0], d.window[i][1] = window if window is not None else (0, 0)
        d.weights = &weights[0]
        d.ops = <const r2ccl_op*>&ops[0]
        d.deps = <const r2ccl_dep*>&deps[0]
        self.plan = r2ccl_plan_create(&d, size)
        if self.plan == NULL:
            raise errors.InternalError(f"the core refuses the plan {source.collective.name} {source.algorithm}")
        self.source = source
        self.algorithm = source.algorithm
        self.chunk_bytes = chunk_bytes

    def __dealloc__(self):
        if self.plan != NULL:
            r2ccl_plan_destroy(self.plan)


cdef class Kept:
    """What an array held before an in-place call, to put it back if the call fails."""

    cdef uint64_t ticket
    cdef char* data
    cdef uint64_t nbytes
    cdef bytearray copy
    cdef object array

    cdef restore(self):
        cdef char* source = self.copy
        cdef char* target = self.data
        cdef uint64_t n = self.nbytes
        with nogil:
            memcpy(target, source, n)


cdef class Work:
    """Handle of one call.

    ``seq`` numbers the calls of a communicator, ``plan`` names the algorithm, ``replayed`` counts the chunks of this
    call that were sent again after a link failed. The arrays stay referenced until the call is done.
    """

    cdef Engine engine
    cdef uint64_t ticket
    cdef int32_t status
    cdef uint32_t c_replayed
    cdef double timeout_s
    cdef object refs
    cdef PlanEntry entry
    cdef Kept kept
    cdef uint32_t keep_flags  # on a device, which keeps what is overwritten itself
    cdef View keeps
    cdef readonly object stream  # that it is ordered on, as a number; None: the host waits
    cdef readonly uint64_t seq

    def __init__(self):
        raise TypeError("Work is made by the methods of Communicator")

    @property
    def plan(self):
        return self.entry.algorithm if self.entry is not None else ""

    @property
    def replayed(self):
        return self.c_replayed

    def done(self):
        """True when the call has ended, well or not; never blocks, never raises."""
        return (self.ticket == 0 or self.engine.core == NULL
                or r2ccl_test(self.engine.core, self.ticket) != R2CCL_IN_PROGRESS)

    def wait(self, stream=None):
        """Host arrays: blocks until the call is done, within the timeout of the call. Device arrays: blocks nobody; what
        is put on ``stream`` (default: CuPy's current one) from now on waits for the call. Raises what befell it."""
        cdef int32_t status
        cdef uintptr_t handle
        cdef r2ccl_engine* core
        if self.stream is None or self.done():
            self.synchronize(None)
            return
        handle = stream_handle(stream, self.refs)
        core = self.engine.handle()
        self.engine.lookers += 1
        with nogil:
            status = r2ccl_hold(core, self.ticket, <void*>handle)
        self.engine.lookers -= 1
        if status != R2CCL_OK:
            raise errors.InvalidArgument(f"stream = {handle:#x} cannot wait for the call: {REFUSED}")

    def synchronize(self, timeout_s=None):
        """Blocks until the call is done, at most ``timeout_s`` seconds (default: the call's). Raises what befell it."""
        if self.ticket != 0:
            self.engine.finish(self, self.timeout_s if timeout_s is None else timeout_s)
        if self.status != R2CCL_OK:
            self.engine.raise_status(self.status)

    def __dealloc__(self):
        if self.ticket != 0 and self.engine is not None:
            self.engine.orphan(self.ticket, (self.refs, self.entry), self.kept)
