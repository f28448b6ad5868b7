"""The directory beside the log: names of federations and sites, keys, tokens, answers.

Facts carry random ids; what people are called stands here, where it can be erased. Secrets
are kept as hashes. Times are milliseconds and always given. Each call is one transaction,
durable when it returns, and any number of threads and processes may use the file.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from sqlite3 import Connection

from consortium.coordinator import enrolment, operators, seen
from consortium.coordinator.access import Scope
from consortium.coordinator.database import Database
from consortium.coordinator.rows import (
    FORMAT,
    MIGRATIONS,
    SCHEMA,
    Answer,
    FederationRow,
    InviteRow,
    OperatorRow,
    SiteNote,
    SiteRow,
    StudyRow,
    columns,
    find_answer,
    find_site,
    find_study,
    site_row,
)
from consortium.core.ids import is_plain_id
from consortium.errors import NotEnrolledError, UnknownFederationError, UsageError
from consortium.wire.token import is_site_name

_NOT_ENROLLED = "no such site is enrolled here"  # never there, or revoked: the same text
_SITES = f"SELECT {columns(SiteRow)} FROM sites"
_EVERYTHING = Scope()
_FEDERATIONS = f"SELECT {columns(FederationRow)} FROM federations"


__all__ = [
    "Answer",
    "FederationRow",
    "InviteRow",
    "OperatorRow",
    "Registry",
    "SiteNote",
    "SiteRow",
    "StudyRow",
]


class Registry:
    """Opens, or makes, `registry.sqlite`."""

    def __init__(self, path: Path) -> None:
        self._database = Database(path, SCHEMA, FORMAT, MIGRATIONS)
        self._identity = ""

    def close(self) -> None:
        self._database.close()

    def identity(self) -> str:
        """This coordinator's own random id, the same for ever: what requests are signed for."""
        if not self._identity:
            with self._database.writing() as run:
                mine = ("identity", secrets.token_hex(16))
                run.execute("INSERT OR IGNORE INTO settings VALUES (?, ?)", mine)
                query = "SELECT value FROM settings WHERE name = 'identity'"
                self._identity = str(run.execute(query).fetchone()[0])
        return self._identity

    # ---- federations and studies ----------------------------------------------------

    def add_federation(self, id: str, name: str, tenant: str, now_ms: int) -> FederationRow:
        """Give a federation its name. The same again changes nothing."""
        if not is_plain_id(id) or not is_site_name(name):
            raise UsageError("a federation's name is 1 to 64 letters, digits, dashes, underscores")
        if not is_site_name(tenant):
            raise UsageError("a tenant's name is 1 to 64 letters, digits, dashes, underscores")
        with self._database.writing() as run:
            query = f"{_FEDERATIONS} WHERE id = ? OR name = ?"
            found = [FederationRow(*row) for row in run.execute(query, (id, name))]
            if [(row.id, row.name, row.tenant) for row in found] == [(id, name, tenant)]:
                return found[0]
            if found:
                raise UsageError(
                    f"there is a federation {name} already", hint="choose another name"
                )
            run.execute("INSERT INTO federations VALUES (?, ?, ?, ?)", (id, name, tenant, now_ms))
        return FederationRow(id, name, tenant, now_ms)

    def federations(self) -> list[FederationRow]:
        with self._database.reading() as run:
            return [FederationRow(*row) for row in run.execute(f"{_FEDERATIONS} ORDER BY name")]

    def federation_named(self, name: str) -> FederationRow:
        with self._database.reading() as run:
            return _federation(run, "name", name)

    def add_study(
        self,
        federation: str,
        plan_hex: str,
        task_hex: str,
        bundle_hex: str,
        lock_hex: str,
        now_ms: int,
    ) -> None:
        """Say which blobs hold a study. The same again changes nothing; other blobs for the
        same plan and task are refused, because sites have approved what was there first."""
        with self._database.writing() as run:
            _federation(run, "id", federation)
            found = find_study(run, federation, plan_hex, task_hex)
            if found is None:
                row = (federation, plan_hex, task_hex, bundle_hex, lock_hex, now_ms)
                run.execute("INSERT INTO studies VALUES (?, ?, ?, ?, ?, ?)", row)
            elif (found.bundle, found.lock) != (bundle_hex, lock_hex):
                raise UsageError(
                    "this plan and task are here already, with another bundle or lock",
                    hint="use the lock that was adopted first, or change the plan",
                )

    def study(self, federation: str, plan_hex: str, task_hex: str) -> StudyRow | None:
        with self._database.reading() as run:
            return find_study(run, federation, plan_hex, task_hex)

    # ---- invitations ----------------------------------------------------------------

    def invite(self, federation: str, name: str, now_ms: int, lifetime_ms: int) -> str:
        """Keep a place for a site; returns the secret that redeems it, once. An older
        invitation under the same name that nobody has used is void from now on."""
        with self._database.writing() as run:
            _federation(run, "id", federation)
            return enrolment.invite(run, federation, name, now_ms, lifetime_ms)

    def redeem(
        self,
        federation: str,
        secret: str,
        site_id: str,
        key: bytes,
        now_ms: int,
        *,
        name: str | None = None,
    ) -> SiteRow:
        """The site that this token makes of `key`: exactly one wins, however many come at
        once. The caller has seen a proof that the asker has the key. `BadTokenError` does not
        tell unknown, used and expired tokens apart, nor those for another `name`. The winner
        may come again with the same key, and gets the same row."""
        newcomer = enrolment.Newcomer(site_id, key, name)
        with self._database.writing() as run:
            return enrolment.redeem(run, federation, secret, newcomer, now_ms)

    def invites(self, federation: str) -> list[InviteRow]:
        query = f"SELECT {columns(InviteRow)} FROM invites WHERE federation = ? ORDER BY created_ms"
        with self._database.reading() as run:
            return [InviteRow(*row) for row in run.execute(query, (federation,))]

    # ---- sites ----------------------------------------------------------------------

    def site(self, site_id: str) -> SiteRow:
        """Any site that ever joined, revoked ones too."""
        with self._database.reading() as run:
            return _site(run, site_id)

    def enrolled(self, site_id: str) -> SiteRow:
        """A site that may ask for something now. Whether an id was never there or was
        revoked, the refusal is the same."""
        found = self.site(site_id)
        if found.is_revoked:
            raise NotEnrolledError(_NOT_ENROLLED)
        return found

    def sites(self, federation: str) -> list[SiteRow]:
        """In order of joining, revoked ones too."""
        query = f"{_SITES} WHERE federation = ? ORDER BY enrolled_ms, rowid"
        with self._database.reading() as run:
            return [site_row(row) for row in run.execute(query, (federation,))]

    def set_seat(self, site_id: str, seat: int, words: Sequence[str]) -> None:
        """Where the log has put the site, and the words to compare by phone."""
        self._change(site_id, "seat = ?, words = ?", seat, " ".join(words))

    def set_certificate(self, site_id: str, serial: str, pem: str | None = None) -> None:
        """The certificate that was issued last."""
        self._change(site_id, "certificate_serial = ?, certificate = ?", serial, pem)

    def revoke(self, site_id: str, now_ms: int) -> None:
        """From now on the site is nobody, and its name is free. The first time stands."""
        self._change(site_id, "revoked_ms = coalesce(revoked_ms, ?)", now_ms)

    def erase_site_name(self, site_id: str) -> None:
        """Forget what a site was called: its id takes the name's place everywhere, and no
        copy stays in the file. Do it again if it raises."""
        with self._database.writing() as run:
            site = _site(run, site_id)
            where = "WHERE federation = ? AND name = ?"
            run.execute(
                f"DELETE FROM invites {where} AND used_ms IS NULL", (site.federation, site.name)
            )
            run.execute(f"DELETE FROM listening {where}", (site.federation, site.name))
            run.execute("UPDATE invites SET name = site WHERE site = ?", (site_id,))
            run.execute("UPDATE sites SET name = id WHERE id = ?", (site_id,))
        self._database.fold_journal()

    def _change(self, site_id: str, change: str, *values: int | str | None) -> None:
        with self._database.writing() as run:
            _site(run, site_id)
            run.execute(f"UPDATE sites SET {change} WHERE id = ?", (*values, site_id))

    # ---- sites that are called ------------------------------------------------------

    def set_listening(self, federation: str, name: str, url: str | None) -> None:
        """Where the site of this name listens for calls; None: it asks by itself."""
        with self._database.writing() as run:
            where = (federation, name)
            run.execute("DELETE FROM listening WHERE federation = ? AND name = ?", where)
            if url is not None:
                run.execute("INSERT INTO listening VALUES (?, ?, ?)", (*where, url))

    def listening(self) -> list[tuple[SiteRow, str]]:
        """Every site that is to be called, of all federations, and where."""
        query = (
            f"SELECT {columns(SiteRow)}, url FROM sites JOIN listening USING "
            "(federation, name) WHERE revoked_ms IS NULL AND seat IS NOT NULL"
        )
        with self._database.reading() as run:
            return [(site_row(row[:-1]), row[-1]) for row in run.execute(query)]

    # ---- answers --------------------------------------------------------------------

    def answer(self, site: str, nonce: str) -> Answer | None:
        """What was said to this request, if it has been here."""
        with self._database.reading() as run:
            return find_answer(run, site, nonce)

    def keep_answer(
        self, site: str, nonce: str, request_digest: str, status: int, body: bytes, now_ms: int
    ) -> Answer:
        """Keep what is about to be said; returns what stands, which is the first that was
        kept. When its digest is another, the nonce was used for another request."""
        with self._database.writing() as run:
            row = (site, nonce, request_digest, status, body, now_ms)
            run.execute("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?, ?, ?)", row)
            stands = find_answer(run, site, nonce)
            assert stands is not None
            return stands

    def forget_answers(self, before_ms: int) -> int:
        """Forget what was kept before; returns how many answers that were."""
        with self._database.writing() as run:
            return run.execute("DELETE FROM answers WHERE kept_ms < ?", (before_ms,)).rowcount

    def forget_most_answers(self, site: str, kept: int) -> int:
        """Forget all but the newest of a site's answers; returns how many that were."""
        newest = "SELECT rowid FROM answers WHERE site = ? ORDER BY rowid DESC LIMIT ?"
        with self._database.writing() as run:
            query = f"DELETE FROM answers WHERE site = ? AND rowid NOT IN ({newest})"
            return run.execute(query, (site, site, kept)).rowcount

    # ---- notes ----------------------------------------------------------------------

    def note_site(
        self,
        site_id: str,
        *,
        seen_ms: int,
        objection: str | None = "",
        own_size: int = 0,
        cosignature: str = "",
    ) -> int:
        """A site was heard of. `objection` is the code of what it refuses to work for, None
        when it objects no more; `cosignature` is a cosigned note that was verified; empty
        says nothing. Returns the longest that the site ever said its own log was."""
        news = SiteNote(site_id, seen_ms, objection, own_size, cosignature)
        with self._database.reading() as run:
            old = seen.note_of(run, site_id)
        if old is None or seen.is_worth_a_write(old, seen.merged(old, news)):
            self.note_sites([news])
        return max(own_size, old.own_size if old else 0)

    def note_sites(self, news: Iterable[SiteNote]) -> None:
        """What `note_site` says, of many sites in one transaction."""
        with self._database.writing() as run:
            for one in news:
                _site(run, one.site)
                note = seen.merged(seen.note_of(run, one.site) or SiteNote(one.site, 0), one)
                row = (note.site, note.seen_ms, note.objection, note.own_size, note.cosignature)
                run.execute("INSERT OR REPLACE INTO notes VALUES (?, ?, ?, ?, ?)", row)

    def notes(self, federation: str) -> dict[str, SiteNote]:
        """What is known of each site that was ever heard of, by its id."""
        query = (
            f"SELECT {columns(SiteNote)} FROM notes "
            "WHERE site IN (SELECT id FROM sites WHERE federation = ?)"
        )
        with self._database.reading() as run:
            return {row[0]: SiteNote(*row) for row in run.execute(query, (federation,))}

    def own_size(self, site_id: str) -> int:
        """The longest that this site ever said its own log was."""
        with self._database.reading() as run:
            note = seen.note_of(run, site_id)
        return note.own_size if note else 0

    # ---- operators ------------------------------------------------------------------

    def new_operator(
        self, role: str, label: str, now_ms: int, lifetime_ms: int, scope: Scope = _EVERYTHING
    ) -> str:
        """A token for somebody who looks or gives orders."""
        listed = None if scope.federations is None else tuple(sorted(scope.federations))
        wanted = OperatorRow(label, role, scope.tenant, listed, now_ms, now_ms + lifetime_ms)
        audience = self.identity()
        with self._database.writing() as run:
            return operators.new_operator(run, wanted, audience)

    def operator(self, token: str, now_ms: int) -> OperatorRow | None:
        """Whose token this is; None when it is nobody's, was revoked, or has expired."""
        audience = self.identity()
        with self._database.reading() as run:
            return operators.operator_of(run, token, audience, now_ms)

    def operators(self) -> list[OperatorRow]:
        """All that were made and not revoked, expired ones too."""
        query = f"SELECT {columns(OperatorRow)} FROM operators ORDER BY label"
        with self._database.reading() as run:
            return [operators.operator_row(row) for row in run.execute(query)]

    def revoke_operator(self, label: str) -> None:
        with self._database.writing() as run:
            if not run.execute("DELETE FROM operators WHERE label = ?", (label,)).rowcount:
                raise UsageError(f"there is no token {label}", hint="consortium token list")


def _federation(run: Connection, column: str, value: str) -> FederationRow:
    row = run.execute(f"{_FEDERATIONS} WHERE {column} = ?", (value,)).fetchone()
    if row is None:
        raise UnknownFederationError("there is no such federation here")
    return FederationRow(*row)


def _site(run: Connection, site_id: str) -> SiteRow:
    found = find_site(run, site_id)
    if found is None:
        raise NotEnrolledError(_NOT_ENROLLED)
    return found
