"""Arrays that NICs may read where they lie."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from ._native.core import Engine


class Registration:
    """An array that is registered with a communicator's RDMA devices. Made by ``Communicator.register``.

    While it lasts, the array's memory is pinned, and the array cannot vanish: this object refers to it. It ends with
    ``release`` (idempotent), with the ``with`` block, when nobody refers to it any more, or with the communicator.
    """

    def __init__(self, engine: Engine, array: Any) -> None:
        self._held: tuple[int, int] | None = None
        self._engine = engine
        # A buffer that is exported can be neither freed nor resized.
        try:
            self._export: Any = memoryview(array)
        except (TypeError, ValueError):  # types that the buffer protocol does not know
            self._export = array
        self._held = engine.register(array)

    @property
    def nbytes(self) -> int:
        """Bytes that are registered; 0 after ``release``."""
        return self._held[1] if self._held is not None else 0

    def release(self) -> None:
        """Take the memory back. Not while a call uses it."""
        held, self._held = self._held, None
        if held is not None:
            self._engine.unregister(*held)
        self._export = None

    def __enter__(self) -> Registration:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()
