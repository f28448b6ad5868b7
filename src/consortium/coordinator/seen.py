"""What is known of each site: when it was heard of, what it objects to, how long its log is."""

from __future__ import annotations

from dataclasses import replace
from sqlite3 import Connection

from consortium.coordinator.rows import SiteNote, columns
from consortium.ledger.note import parse_text

_SEEN_EVERY_MS = 60_000


def note_of(run: Connection, site: str) -> SiteNote | None:
    query = f"SELECT {columns(SiteNote)} FROM notes WHERE site = ?"
    row = run.execute(query, (site,)).fetchone()
    return SiteNote(*row) if row else None


def merged(old: SiteNote, news: SiteNote) -> SiteNote:
    """The note with what is new in it. An empty text says nothing; a log never gets shorter,
    and the cosigned checkpoint never older."""
    return SiteNote(
        news.site,
        news.seen_ms,
        old.objection if news.objection == "" else news.objection,
        max(old.own_size, news.own_size),
        max(old.cosignature, news.cosignature, key=_cosigned_size),
    )


def is_worth_a_write(old: SiteNote, new: SiteNote) -> bool:
    """Being heard of is written once a minute; anything else at once. A clock that jumped
    back must not leave a site heard of in the future."""
    is_all_the_same = replace(new, seen_ms=old.seen_ms) == old
    return not is_all_the_same or abs(new.seen_ms - old.seen_ms) >= _SEEN_EVERY_MS


def _cosigned_size(note: str) -> int:
    """How many facts a cosigned checkpoint covers."""
    return parse_text(note.partition("\n\n")[0] + "\n").size if note else -1
