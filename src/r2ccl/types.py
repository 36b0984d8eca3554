"""Data types, reduction operators and collectives, with the numbers the native core knows them by."""

from __future__ import annotations

from enum import IntEnum

import ml_dtypes
import numpy as np


class DType(IntEnum):
    """Element types that can be sent; all but none of them can be reduced (see ``reducible``)."""

    BOOL = 0
    INT8 = 1
    UINT8 = 2
    INT16 = 3
    UINT16 = 4
    INT32 = 5
    UINT32 = 6
    INT64 = 7
    UINT64 = 8
    FLOAT16 = 9
    BFLOAT16 = 10
    FLOAT32 = 11
    FLOAT64 = 12
    FLOAT8_E4M3FN = 13
    FLOAT8_E5M2 = 14
    COMPLEX64 = 15
    COMPLEX128 = 16

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return NUMPY_OF[self].itemsize

    @property
    def is_low_precision(self) -> bool:
        """True for 8- and 16-bit floats: their sums and products accumulate in float32."""
        return self in LOW_PRECISION


class ReduceOp(IntEnum):
    """Reduction operators. AVG is the sum divided by the number of ranks (integers: truncated toward zero)."""

    SUM = 0
    PROD = 1
    MIN = 2
    MAX = 3
    AVG = 4


class Collective(IntEnum):
    """The operations a plan can stand for."""

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


NUMPY_OF: dict[DType, np.dtype] = {
    DType.BOOL: np.dtype(np.bool_),
    DType.INT8: np.dtype(np.int8),
    DType.UINT8: np.dtype(np.uint8),
    DType.INT16: np.dtype(np.int16),
    DType.UINT16: np.dtype(np.uint16),
    DType.INT32: np.dtype(np.int32),
    DType.UINT32: np.dtype(np.uint32),
    DType.INT64: np.dtype(np.int64),
    DType.UINT64: np.dtype(np.uint64),
    DType.FLOAT16: np.dtype(np.float16),
    DType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    DType.FLOAT32: np.dtype(np.float32),
    DType.FLOAT64: np.dtype(np.float64),
    DType.FLOAT8_E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    DType.FLOAT8_E5M2: np.dtype(ml_dtypes.float8_e5m2),
    DType.COMPLEX64: np.dtype(np.complex64),
    DType.COMPLEX128: np.dtype(np.complex128),
}
DTYPE_OF: dict[np.dtype, DType] = {v: k for k, v in NUMPY_OF.items()}
LOW_PRECISION = frozenset({DType.FLOAT16, DType.BFLOAT16, DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2})
