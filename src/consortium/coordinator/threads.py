"""The few threads in which the synchronous half of a coordinator runs.

The event loop parses, hashes and waits; whatever takes a lock or touches a database runs here.
Orders and submissions wait for the disk, so they have threads of their own. A question waits
for the disk only while a fact of the same federation is being forced to it. A request that
only waits for news occupies no thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

READERS, WRITERS = 3, 6

Result = TypeVar("Result")


class Threads:
    """`read` for what answers at once, `write` for what must be durable first."""

    def __init__(self) -> None:
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="reader")
        self._writers = ThreadPoolExecutor(WRITERS, thread_name_prefix="writer")

    async def read(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)

    async def write(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._writers, work)

    def close(self) -> None:
        """Let what has begun end; what waits is dropped."""
        for pool in (self._readers, self._writers):
            pool.shutdown(cancel_futures=True)
