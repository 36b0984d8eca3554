# Arrays of calls: address, count, type, and what may be done with them; part of core.pyx.

# Formats of the buffer protocol on this platform, native order and size.
cdef dict FORMATS = {
    "?": DType.BOOL, "b": DType.INT8, "B": DType.UINT8, "h": DType.INT16, "H": DType.UINT16, "i": DType.INT32,
    "I": DType.UINT32, "l": DType.INT64, "L": DType.UINT64, "q": DType.INT64, "Q": DType.UINT64, "e": DType.FLOAT16,
    "f": DType.FLOAT32, "d": DType.FLOAT64, "Zf": DType.COMPLEX64, "Zd": DType.COMPLEX128, "c": DType.UINT8,
}
cdef int32_t FAST_FORMATS[128]
memset(FAST_FORMATS, 0xff, sizeof(FAST_FORMATS))
for _f, _d in FORMATS.items():
    if len(_f) == 1:
        FAST_FORMATS[ord(_f)] = int(_d)

# Bit `op` is set where a type cannot be reduced with it: complex numbers have no order, bool has no average.
cdef uint32_t NOT_REDUCIBLE[32]
memset(NOT_REDUCIBLE, 0, sizeof(NOT_REDUCIBLE))
NOT_REDUCIBLE[<int>DType.BOOL] = 1 << AVG
NOT_REDUCIBLE[<int>DType.COMPLEX64] = NOT_REDUCIBLE[<int>DType.COMPLEX128] = 1 << MIN | 1 << MAX


cdef int view_of(CudaDevice device, object array, bint writable, str name, View* out) except -1:
    """Address, count and dtype of an array. NumPy arrays of standard types take the short way."""
    if device is not None:
        return device_view(device, array, writable, name, out)
    cdef Py_buffer buf
    cdef int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (PyBUF_WRITABLE if writable else 0)
    cdef int32_t code = -1
    try:
        PyObject_GetBuffer(array, &buf, flags)
    except Exception:
        code = -2
    if code == -1:
        if buf.format != NULL and buf.format[0] != 0 and buf.format[1] == 0 and buf.format[0] > 0:
            code = FAST_FORMATS[<int>buf.format[0]]
        out.data = <char*>buf.buf
        out.itemsize = <uint32_t>buf.itemsize
        out.count = <uint64_t>(buf.len // buf.itemsize) if buf.itemsize else 0
        out.dtype = code
        PyBuffer_Release(&buf)
        if code >= 0:
            return 0
    address, count, dtype = as_buffer(array, writable, name)
    out.data = <char*><uintptr_t>address
    out.count = count
    out.dtype = int(dtype)
    out.itemsize = dtype.itemsize
    return 0


cdef int check_reducible(int32_t dtype, int op) except -1:
    if op < 0 or op > AVG:
        raise errors.InvalidArgument(f"op = {op}: one of {', '.join(f'{o.name} ({int(o)})' for o in ReduceOp)}")
    if NOT_REDUCIBLE[dtype] >> op & 1:
        able = ", ".join(o.name for o in ReduceOp if not NOT_REDUCIBLE[dtype] >> <int>o & 1)
        raise errors.InvalidArgument(
            f"op = {ReduceOp(op).name} has no meaning for {DType(dtype).name.lower()} arrays: use one of {able}")
    return 0


cdef int check_apart(char* a, uint64_t a_bytes, char* b, uint64_t b_bytes) except -1:
    """Input and output are the same memory as the in-place rule says, or do not touch."""
    if a_bytes and b_bytes and a < b + b_bytes and b < a + a_bytes:
        raise errors.InvalidArgument(
            f"input ({a_bytes} bytes at {<uintptr_t>a:#x}) and output ({b_bytes} bytes at {<uintptr_t>b:#x}) overlap in "
            "part: use separate arrays, or exactly the in-place form")
    return 0


def host_reduce(uintptr_t dst, uintptr_t a, uintptr_t b, uint64_t count, int dtype, int op, int avg_ranks=0, int wide=0):
    """dst = a op b on host memory, with the core's kernels; for tests. wide: bit 0 dst, 1 a, 2 b are float32."""
    if r2ccl_host_reduce(<void*>dst, <const void*>a, <const void*>b, count, dtype, op, avg_ranks, wide) != R2CCL_OK:
        raise errors.InvalidArgument(f"{DType(dtype).name} cannot be reduced with operator {op}")
