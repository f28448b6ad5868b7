"""Requests with effects have them once: what was said is kept, and said again.

Only what is final is kept: an answer, or a refusal that is the caller's fault. After trouble
on our side, or with something still missing here, the same request may be tried again.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from hashlib import sha256

from pydantic import BaseModel

from consortium.coordinator.problems import problem
from consortium.coordinator.registry import Registry
from consortium.coordinator.rows import Answer
from consortium.drive.clock import Clock
from consortium.errors import ConsortiumError, Fault, ReplayedNonceError
from consortium.wire.signing import RequestLine

KEPT_MS = 7 * 86_400_000  # an agent that lost an answer asks again within days, or never
MOST_KEPT = 10_000  # of one site: some megabytes. What it asks in years, or is up to no good
_LOOK_AFTER = 500  # answers to a site, the number of its answers is looked at
_STRIPES = 64
_OK = 200


class Remembered:
    """Performs requests, each once."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._registry, self._clock = registry, clock
        # The same request twice at the same time: the second waits for the first's answer.
        self._stripes = [threading.Lock() for _ in range(_STRIPES)]
        self._since: Counter[str] = Counter()  # answers to a site since somebody looked

    def once(self, line: RequestLine, perform: Callable[[], BaseModel]) -> Answer:
        """The answer to this request: the kept one, or that of `perform`. A refusal that is
        final is an answer too; others are raised."""
        request = sha256(line.message()).hexdigest()
        with self._stripes[hash((line.site, line.nonce)) % _STRIPES]:
            kept = self._registry.answer(line.site, line.nonce)
            if kept is None:
                status, body = _performed(perform)
                kept = self._registry.keep_answer(
                    line.site, line.nonce, request, status, body, self._clock.now_ms()
                )
                self._forget_many(line.site)
        if kept.request_digest != request:
            raise ReplayedNonceError("this nonce was used for another request")
        return kept

    def _forget_many(self, site: str) -> None:
        """A site's own doing must not fill the disk. A request that is forgotten has no second
        effect for that: its round is over, or the core knows what it brings."""
        self._since[site] += 1
        if self._since[site] >= _LOOK_AFTER:
            del self._since[site]
            self._registry.forget_most_answers(site, MOST_KEPT)

    def forget_old(self) -> int:
        """Drop what nobody will ask for again; how many answers that were."""
        return self._registry.forget_answers(self._clock.now_ms() - KEPT_MS)


def _performed(perform: Callable[[], BaseModel]) -> tuple[int, bytes]:
    try:
        return _OK, perform().model_dump_json().encode()
    except ConsortiumError as error:
        if error.fault is Fault.OURS:
            raise
        return problem(error)
