"""The blocks of a request, which serve ``with`` and ``async with`` alike: none of them waits for anything."""

from __future__ import annotations

from types import TracebackType


class Block:
    """A block without a value.  A subclass enters and leaves it; ``async with`` does the same."""

    __slots__ = ()

    def __enter__(self) -> None:
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)
