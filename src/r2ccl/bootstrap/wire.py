"""Frames between rank 0's store and its clients: little-endian, length-bounded, the same on every architecture.

frame   u32 bytes of body, u8 kind, body
GATHER  u32 ms left, u32 ms given, u16 bytes of tag, tag, value        client -> store
RESULT  for each rank: u32 bytes, value                                store -> client
WELCOME 32 bytes: key or nonce of this bootstrap                       store -> client
TIMEOUT, LOST, ERROR  text                                             store -> client
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from ..errors import BootstrapError
from .base import MAX_TAG_BYTES, MAX_VALUE_BYTES

HEAD = struct.Struct("<IB")
_GATHER = struct.Struct("<IIH")
_LENGTH = struct.Struct("<I")
_MAX_MS = 0xFFFFFFFF
MAX_GATHER_BYTES = _GATHER.size + MAX_TAG_BYTES + MAX_VALUE_BYTES


class Kind(IntEnum):
    """What a frame says."""

    GATHER = 1
    RESULT = 2
    WELCOME = 3
    TIMEOUT = 4
    LOST = 5
    ERROR = 6


@dataclass(frozen=True)
class GatherRequest:
    """One rank's part of an all-gather."""

    tag: str
    value: bytes
    remaining_s: float
    given_s: float


def max_result_bytes(size: int) -> int:
    """Upper bound of a RESULT body for ``size`` ranks."""
    return size * (_LENGTH.size + MAX_VALUE_BYTES)


def frame(kind: Kind, body: bytes) -> bytes:
    """Head and body."""
    return HEAD.pack(len(body), kind) + body


def parse_head(data: bytes, limit_bytes: int) -> tuple[int, Kind]:
    """(bytes of body, kind); ``BootstrapError`` for an unknown kind or a body beyond ``limit_bytes``."""
    length, kind = HEAD.unpack(data)
    if length > limit_bytes:
        raise BootstrapError(f"a frame of {length} bytes; at most {limit_bytes} are allowed")
    try:
        return length, Kind(kind)
    except ValueError:
        raise BootstrapError(f"a frame of unknown kind {kind}") from None


def pack_gather(request: GatherRequest) -> bytes:
    """Body of GATHER."""
    tag = request.tag.encode()
    head = _GATHER.pack(_ms(request.remaining_s), _ms(request.given_s), len(tag))
    return head + tag + request.value


def parse_gather(body: bytes) -> GatherRequest:
    """``BootstrapError`` when lengths do not fit."""
    if len(body) < _GATHER.size:
        raise BootstrapError(f"a GATHER of {len(body)} bytes; at least {_GATHER.size}")
    remaining_ms, given_ms, tag_bytes = _GATHER.unpack_from(body)
    tag = body[_GATHER.size : _GATHER.size + tag_bytes]
    value = body[_GATHER.size + tag_bytes :]
    if len(tag) != tag_bytes or not 0 < tag_bytes <= MAX_TAG_BYTES or len(value) > MAX_VALUE_BYTES:
        raise BootstrapError(f"a GATHER with a tag of {tag_bytes} and a value of {len(value)} bytes")
    return GatherRequest(tag.decode(errors="replace"), value, remaining_ms / 1000, given_ms / 1000)


def pack_result(values: list[bytes]) -> bytes:
    """Body of RESULT."""
    return b"".join(_LENGTH.pack(len(value)) + value for value in values)


def parse_result(body: bytes, size: int) -> list[bytes]:
    """Exactly ``size`` values; ``BootstrapError`` otherwise."""
    values: list[bytes] = []
    at = 0
    for _ in range(size):
        if len(body) - at < _LENGTH.size:
            raise BootstrapError(f"a RESULT that ends after {len(values)} of {size} values")
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        if length > MAX_VALUE_BYTES or len(body) - at < length:
            raise BootstrapError(f"a RESULT whose value {len(values)} claims {length} bytes, {len(body) - at} are left")
        values.append(body[at : at + length])
        at += length
    if at != len(body):
        raise BootstrapError(f"a RESULT with {len(body) - at} bytes after {size} values")
    return values


def _ms(seconds: float) -> int:
    return min(_MAX_MS, round(seconds * 1000))
