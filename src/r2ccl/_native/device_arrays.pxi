# Arrays in the memory of a GPU, and host memory that it reaches; part of core.pyx.

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid

from r2ccl.device_arrays import as_device_buffer
from r2ccl.streams import stream_handle


# The head of a DLPack capsule, either form (dlpack.h, Apache-2.0, restated).
cdef struct DlTensor:
    char* data
    int32_t device_type
    int32_t device_id
    int32_t ndim
    uint8_t code
    uint8_t bits
    uint16_t lanes
    int64_t* shape
    int64_t* strides
    uint64_t byte_offset

cdef struct DlVersioned:
    uint32_t major
    uint32_t minor
    void* manager
    void* deleter
    uint64_t flags
    DlTensor tensor


def dlpack_view(object capsule):
    """(address, code, bits, lanes, shape, strides or None, read-only) of a DLPack capsule, which stays unconsumed: the
    array itself keeps the memory."""
    cdef DlTensor* t
    cdef DlVersioned* v
    cdef bint read_only = False
    if PyCapsule_IsValid(capsule, "dltensor_versioned"):
        v = <DlVersioned*>PyCapsule_GetPointer(capsule, "dltensor_versioned")
        t = &v.tensor
        read_only = v.flags & 1
    else:
        t = <DlTensor*>PyCapsule_GetPointer(capsule, "dltensor")
    shape = tuple(t.shape[i] for i in range(t.ndim))
    strides = tuple(t.strides[i] for i in range(t.ndim)) if t.strides != NULL else None
    return <uintptr_t>t.data + t.byte_offset, t.code, t.bits, t.lanes, shape, strides, read_only


cdef class HostBuffer:
    """Bytes in host memory that links read and write and that the device reaches, too: what a communicator on a device
    exchanges for its own purposes. Has the buffer protocol."""

    cdef CudaDevice device
    cdef char* data
    cdef Py_ssize_t nbytes
    cdef bytearray memory  # where there is no device

    def __cinit__(self, CudaDevice device, Py_ssize_t nbytes):
        self.device = device
        self.nbytes = nbytes
        self.data = NULL
        if device is None:
            self.memory = bytearray(nbytes)
            self.data = self.memory
        else:
            self.data = <char*>r2ccl_device_allocate(device.get(), nbytes if nbytes else 1, 1)
            if self.data == NULL:
                raise MemoryError("r2ccl: no pinned memory left")

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.data, self.nbytes, 0, flags)

    def __dealloc__(self):
        if self.device is not None and self.device.device != NULL and self.data != NULL:
            r2ccl_device_release(self.device.device, self.data, 1)


cdef int device_view(CudaDevice device, object array, bint writable, str name, View* out) except -1:
    cdef HostBuffer own
    if isinstance(array, HostBuffer):
        own = array
        out.data = own.data
        out.count = own.nbytes
        out.itemsize = 1
        out.dtype = DType.UINT8
        return 0
    address, count, dtype = as_device_buffer(array, writable, name, device)
    out.data = <char*><uintptr_t>address
    out.count = count
    out.dtype = int(dtype)
    out.itemsize = dtype.itemsize
    return 0
