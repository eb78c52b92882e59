"""The blocks of a request, which serve ``with`` and ``async with`` alike: none of them waits for anything.

How it works.  A subclass has the synchronous pair only, and the asynchronous one calls it.  Nothing is awaited, so a
task cannot be cancelled half-way in or out of a block.
"""

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
