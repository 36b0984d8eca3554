# GPUs as Python sees them; part of core.pyx. Addresses are integers, memory is the caller's to give back.


cdef extern from "r2ccl/device.h" nogil:
    ctypedef struct r2ccl_pointer:
        int32_t kind
        int32_t ordinal
        uint64_t buffer_id
    ctypedef struct r2ccl_gate:
        const uint64_t* ready
        uint64_t ready_value
        uint64_t* done
        uint64_t done_value
        uint32_t* arrived
    ctypedef struct r2ccl_export:
        uint8_t bytes[80]

    int32_t r2ccl_cuda_probe(const char*, char*, size_t)
    r2ccl_device* r2ccl_cuda_open(const char*, int32_t, char*, size_t)
    void r2ccl_device_close(r2ccl_device*)
    void r2ccl_device_bus_id(r2ccl_device*, char*, size_t)
    int32_t r2ccl_device_memory_operations(r2ccl_device*)
    uint64_t r2ccl_device_blocks(r2ccl_device*)
    void* r2ccl_device_allocate(r2ccl_device*, uint64_t, int32_t)
    void r2ccl_device_release(r2ccl_device*, void*, int32_t)
    int32_t r2ccl_device_reduce(r2ccl_device*, void*, const void* const*, uint32_t, uint64_t, int32_t, int32_t, uint32_t,
                                uint32_t, int32_t, const r2ccl_gate*)
    int32_t r2ccl_device_copy(r2ccl_device*, void*, const void*, uint64_t, int32_t, uint32_t, uint32_t, int32_t)
    uint64_t r2ccl_device_mark(r2ccl_device*, int32_t)
    uint64_t r2ccl_device_passed(r2ccl_device*, int32_t)
    const char* r2ccl_device_failure(r2ccl_device*)
    int32_t r2ccl_device_signal(r2ccl_device*, void*, uint64_t*, uint64_t)
    int32_t r2ccl_device_hold(r2ccl_device*, void*, const uint64_t*, uint64_t)
    int32_t r2ccl_device_capturing(r2ccl_device*, void*)
    void r2ccl_device_pointer(r2ccl_device*, const void*, r2ccl_pointer*)
    int32_t r2ccl_device_register(r2ccl_device*, void*, uint64_t)
    void r2ccl_device_unregister(r2ccl_device*, void*)
    int32_t r2ccl_device_export(r2ccl_device*, const void*, uint64_t, r2ccl_export*)
    void* r2ccl_device_import(r2ccl_device*, const r2ccl_export*)
    void r2ccl_device_close_imported(r2ccl_device*, void*)
    int32_t r2ccl_device_reach(r2ccl_device*, int32_t)
    int32_t r2ccl_device_dma_buf(r2ccl_device*, const void*, uint64_t)

    enum:
        R2CCL_MAX_SOURCES

cdef enum:
    WHY = 1024
    QUEUES = 3

QUEUE_OUT, QUEUE_IN, QUEUE_LOCAL = 0, 1, 2
POINTER_KINDS = ("pageable", "pinned", "device", "managed")


def cuda_probe(str library=""):
    """(number of GPUs, why there is none). ``library``: the driver's file; empty: the system's."""
    cdef char why[WHY]
    cdef bytes name = os.fsencode(library)
    cdef const char* path = name
    cdef int32_t count
    why[0] = 0
    with nogil:
        count = r2ccl_cuda_probe(path, why, WHY)
    return count, why.decode(errors="replace")


cdef class CudaDevice:
    """A GPU: its memory, and work on its three queues. Nothing but ``close`` waits for the GPU.

    Raises InvalidArgument where there is no such GPU, with what is missing. Not closed explicitly, it is closed when it
    is collected.
    """

    cdef r2ccl_device* device
    cdef readonly int ordinal

    def __cinit__(self, int ordinal=0, str library=""):
        cdef char why[WHY]
        cdef bytes name = os.fsencode(library)
        cdef const char* path = name
        why[0] = 0
        self.ordinal = ordinal
        with nogil:
            self.device = r2ccl_cuda_open(path, ordinal, why, WHY)
        if self.device == NULL:
            raise errors.InvalidArgument(f"GPU {ordinal} cannot be used: {why.decode(errors='replace')}")

    cdef r2ccl_device* get(self) except NULL:
        if self.device == NULL:
            raise errors.InvalidArgument(f"GPU {self.ordinal} was closed")
        return self.device

    @property
    def name(self):
        return f"cuda:{self.ordinal}"

    @property
    def bus_id(self):
        """Its PCI address, such as ``0000:3B:00.0``; empty: the driver does not say."""
        cdef char text[32]
        r2ccl_device_bus_id(self.get(), text, sizeof(text))
        return text.decode()

    @property
    def memory_operations(self):
        """Streams wait by the driver's memory operations; False: by small kernels."""
        return r2ccl_device_memory_operations(self.get()) != 0

    @property
    def blocks(self):
        """How many blocks of memory were handed out and not given back."""
        return r2ccl_device_blocks(self.get())

    def allocate(self, uint64_t nbytes, bint staging=False):
        """Address of new memory of the GPU, or pinned memory of the host (``staging``). MemoryError: there is none."""
        cdef r2ccl_device* device = self.get()
        cdef void* memory
        with nogil:
            memory = r2ccl_device_allocate(device, nbytes, staging)
        if memory == NULL:
            raise MemoryError(f"GPU {self.ordinal} has no {nbytes} bytes left")
        return <uintptr_t>memory

    def release(self, uintptr_t memory, bint staging=False):
        """Gives memory back, which no queued work may use any more."""
        cdef r2ccl_device* device = self.get()
        with nogil:
            r2ccl_device_release(device, <void*>memory, staging)

    def reduce(self, uintptr_t dst, sources, uint64_t count, int dtype, int op, int avg_ranks=0, int wide=0,
               int queue=QUEUE_LOCAL, gate=None):
        """dst = the sources combined from the left. wide: bit 0 dst, bit 1 + s source s are float32.

        gate: (ready, value, done, value, arrived): the kernel itself waits until the word at ``ready`` has reached its
        value, and then publishes the other one at ``done``. ``arrived``: four zero bytes of the GPU's memory.
        """
        cdef r2ccl_gate waits
        cdef const r2ccl_gate* given = NULL
        if gate is not None:
            waits.ready, waits.ready_value = <const uint64_t*><uintptr_t>gate[0], gate[1]
            waits.done, waits.done_value = <uint64_t*><uintptr_t>gate[2], gate[3]
            waits.arrived = <uint32_t*><uintptr_t>gate[4]
            given = &waits
        cdef r2ccl_device* device = self.get()
        cdef const void* addresses[R2CCL_MAX_SOURCES]
        cdef uint32_t n = len(sources)
        cdef int32_t status = R2CCL_INVALID_ARGUMENT
        cdef uint32_t i
        if n <= R2CCL_MAX_SOURCES:
            for i in range(n):
                addresses[i] = <const void*><uintptr_t>sources[i]
            with nogil:
                status = r2ccl_device_reduce(device, <void*>dst, addresses, n, count, dtype, op, avg_ranks, wide, queue,
                                             given)
        if status != R2CCL_OK:
            raise errors.InvalidArgument(
                f"{DType(dtype).name} cannot be reduced with operator {op} from {n} sources on queue {queue}")

    def copy(self, uintptr_t dst, uintptr_t src, uint64_t count, int dtype, int avg_ranks=0, int wide=0,
             int queue=QUEUE_LOCAL):
        """dst = src, divided by avg_ranks if above 1. wide: bit 0 dst, bit 1 src are float32."""
        cdef r2ccl_device* device = self.get()
        cdef int32_t status
        with nogil:
            status = r2ccl_device_copy(device, <void*>dst, <const void*>src, count, dtype, avg_ranks, wide, queue)
        if status != R2CCL_OK:
            raise errors.InvalidArgument(f"{DType(dtype).name} cannot be copied with avg_ranks {avg_ranks} on queue {queue}")

    def mark(self, int queue=QUEUE_LOCAL):
        """A number; all work given to the queue so far is complete when ``passed`` has reached it."""
        cdef r2ccl_device* device = self.get()
        if not 0 <= queue < QUEUES:
            raise errors.InvalidArgument(f"queue = {queue}: 0 out, 1 in or 2 local")
        cdef uint64_t number
        with nogil:
            number = r2ccl_device_mark(device, queue)
        return number

    def passed(self, int queue=QUEUE_LOCAL):
        """The largest number of a mark that the queue has passed."""
        cdef r2ccl_device* device = self.get()
        if not 0 <= queue < QUEUES:
            raise errors.InvalidArgument(f"queue = {queue}: 0 out, 1 in or 2 local")
        cdef uint64_t number
        with nogil:
            number = r2ccl_device_passed(device, queue)
        return number

    def failure(self):
        """Why the GPU can do no more work; None: it is well."""
        cdef r2ccl_device* device = self.get()
        cdef const char* why
        with nogil:
            why = r2ccl_device_failure(device)
        return None if why == NULL else why.decode(errors="replace")

    def signal(self, uintptr_t stream, uintptr_t word, uint64_t value):
        """Writes the value after what the stream holds now. False: refused."""
        cdef r2ccl_device* device = self.get()
        cdef int32_t done
        with nogil:
            done = r2ccl_device_signal(device, <void*>stream, <uint64_t*>word, value)
        return done != 0

    def hold(self, uintptr_t stream, uintptr_t word, uint64_t value):
        """What is put on the stream from now on waits until the word has reached the value. False: refused."""
        cdef r2ccl_device* device = self.get()
        cdef int32_t done
        with nogil:
            done = r2ccl_device_hold(device, <void*>stream, <const uint64_t*>word, value)
        return done != 0

    def capturing(self, uintptr_t stream):
        """True while the stream records a graph instead of working."""
        return r2ccl_device_capturing(self.get(), <void*>stream) != 0

    def pointer(self, uintptr_t address):
        """(kind, ordinal of the GPU or -1, number of the allocation) of an address; kinds: POINTER_KINDS."""
        cdef r2ccl_pointer found
        r2ccl_device_pointer(self.get(), <const void*>address, &found)
        return POINTER_KINDS[found.kind], found.ordinal, found.buffer_id

    def register(self, uintptr_t address, uint64_t nbytes):
        """Pins pages of the host's memory, so that it serves as staging memory. False: refused."""
        return r2ccl_device_register(self.get(), <void*>address, nbytes) != 0

    def unregister(self, uintptr_t address):
        """Ends what ``register`` began."""
        r2ccl_device_unregister(self.get(), <void*>address)

    def export(self, uintptr_t memory, uint64_t nbytes):
        """A range of GPU memory as bytes for another process; None: it cannot be shared."""
        cdef r2ccl_export exported
        if not r2ccl_device_export(self.get(), <const void*>memory, nbytes, &exported):
            return None
        return (<char*>exported.bytes)[:sizeof(exported.bytes)]

    def import_memory(self, bytes exported):
        """Address of another process's range; None: refused."""
        cdef r2ccl_export given
        if len(exported) != sizeof(given.bytes):
            raise errors.InvalidArgument(f"an exported range has {sizeof(given.bytes)} bytes, not {len(exported)}")
        memcpy(given.bytes, <const char*>exported, sizeof(given.bytes))
        cdef void* memory = r2ccl_device_import(self.get(), &given)
        return None if memory == NULL else <uintptr_t>memory

    def close_imported(self, uintptr_t memory):
        """Ends what ``import_memory`` began."""
        r2ccl_device_close_imported(self.get(), <void*>memory)

    def reach(self, int ordinal):
        """Lets this GPU touch the memory of another one. False: they have no way to each other."""
        return r2ccl_device_reach(self.get(), ordinal) != 0

    def dma_buf(self, uintptr_t memory, uint64_t nbytes):
        """A descriptor of a range of whole pages, for a NIC; -1: not offered."""
        return r2ccl_device_dma_buf(self.get(), <const void*>memory, nbytes)

    def close(self):
        """Waits for the queues and frees everything. Idempotent."""
        cdef r2ccl_device* device = self.device
        self.device = NULL
        if device != NULL:
            with nogil:
                r2ccl_device_close(device)

    def forget(self):
        """In a process that was forked off: the GPU is the parent's."""
        self.device = NULL

    def __dealloc__(self):
        if self.device != NULL:
            with nogil:
                r2ccl_device_close(self.device)
