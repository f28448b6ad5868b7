"""What sites say of themselves when they ask, kept in memory and written down once a second:
asking must not cost a disk write, and the last second of it may be lost."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from consortium.coordinator.registry import Registry
from consortium.coordinator.rows import SiteNote, SiteRow
from consortium.coordinator.seen import merged
from consortium.errors import VerificationError
from consortium.ledger.note import Verifier, cosignatures, open_checkpoint
from consortium.wire.messages import Ask


class Heard:
    """What is known of one federation's sites."""

    def __init__(self, registry: Registry, federation: str) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._known = registry.notes(federation)
        self._changed: set[str] = set()

    def take(self, site: SiteRow, ask: Ask, cosigned: str, now_ms: int) -> SiteNote:
        """A site was heard of; what is known of it now."""
        news = SiteNote(site.id, now_ms, ask.objection, ask.own_size, cosigned)
        with self._lock:
            old = self._known.get(site.id) or SiteNote(site.id, 0)
            note = self._known[site.id] = merged(old, news)
            self._changed.add(site.id)
            return note

    def notes(self) -> dict[str, SiteNote]:
        with self._lock:
            return dict(self._known)

    def write(self) -> None:
        """Write down what has changed."""
        with self._lock:
            changed = [self._known[site] for site in self._changed]
            self._changed.clear()
        if changed:
            self._registry.note_sites(changed)


def verified_cosignature(
    note: str, site: SiteRow, origin: str, log_keys: Sequence[Verifier]
) -> str:
    """A checkpoint of this log that this site has cosigned; empty for anything else. What a
    site claims to have witnessed is kept only when it holds."""
    if not note:
        return ""
    try:
        open_checkpoint(note, origin, list(log_keys))
        return note if cosignatures(note, [Verifier(site.id, site.key)]) else ""
    except VerificationError:
        return ""
