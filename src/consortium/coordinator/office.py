"""Everything that one coordinator keeps and runs: the data directory, the registry of names,
the authority, and a desk for each federation.

    authority.key, authority.pem   the certificate authority: secret, and public
    registry.sqlite                names, invitations, answers: what is not in the log
    uploads/                       what sites are sending
    operator.json                  address, authority and token of this machine's operator
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from consortium.coordinator.addresses import check_url
from consortium.coordinator.desk import Desk
from consortium.coordinator.enrolment import USED
from consortium.coordinator.operators import LIFETIME_MS
from consortium.coordinator.registry import Registry
from consortium.coordinator.rows import FederationRow, OperatorRow, SiteRow
from consortium.coordinator.study import LockedStudy, read_locked, store_study
from consortium.coordinator.telling import Teller
from consortium.coordinator.uploads import Uploads
from consortium.core import inputs as i
from consortium.core.facts import Departure
from consortium.core.ids import Secret, SiteId
from consortium.core.terms import DAY_MS
from consortium.crypto.authority import Authority, key_of_request, serial_of
from consortium.crypto.keyfile import read_secret, write_secret
from consortium.drive.accounts import Accounts
from consortium.drive.clock import Clock
from consortium.drive.directory import DataDirectory
from consortium.errors import (
    BadTokenError,
    CertificateError,
    ConsortiumError,
    NotEnrolledError,
    UnknownFederationError,
    UnsignedRequestError,
    UsageError,
)
from consortium.plan.noise import check_noise
from consortium.privacy.pricing import Pricer
from consortium.store.files import write_durably
from consortium.wire.messages import Enrol, Enrolled, Renew, Renewed
from consortium.wire.token import JoinToken
from consortium.wire.words import words_of

INVITE_MS = DAY_MS
OPERATOR_FILE = "operator.json"
_LOCAL = "local"
_RENEW_MS = LIFETIME_MS // 3
_NOBODY = "this site is not on the roster"


class Office:
    """Opens, or makes, a coordinator's directory. `start` begins to work."""

    def __init__(
        self, folder: Path, clock: Clock, *, seed: int | None = None, url: str = ""
    ) -> None:
        self.folder, self.clock, self.url = folder, clock, url
        self.directory = DataDirectory(folder)
        # The log would bear two coordinators; the operator's file and the port would not.
        self.directory.lock()
        self.registry = Registry(folder / "registry.sqlite")
        self.audience = self.registry.identity()
        self.authority = _authority(folder, clock.now_ms())
        self.uploads = Uploads(folder / "uploads")
        self._seed = seed
        self._pricer = Pricer()
        self._accounts: dict[str, Accounts] = {}  # by tenant
        self.desks: dict[str, Desk] = {}
        self._tellers: dict[str, Teller] = {}
        self._rows: dict[str, FederationRow] = {}
        for row in self.registry.federations():
            self._open(row)

    def _open(self, row: FederationRow) -> Desk:
        desk = Desk(
            self.directory,
            self.registry,
            (row.id, row.name),
            clock=self.clock,
            uploads=self.uploads,
            accounts=self._accounts_of(row.tenant),
            seed=self._seed,
        )
        desk.open_account()  # a crash may have come between a plan and its account
        self.desks[row.id] = desk
        self._rows[row.name] = row
        self._tellers[row.name] = Teller(desk, self.directory.log, self.registry, self.clock)
        return desk

    def _accounts_of(self, tenant: str) -> Accounts:
        if tenant not in self._accounts:
            parts = self.directory.log, self.clock, self._pricer
            self._accounts[tenant] = Accounts(*parts, tenant)
        return self._accounts[tenant]

    def start(self, on_trouble: Callable[[ConsortiumError], None]) -> None:
        """Let every federation work. What its duties stumble over is told, and tried again."""
        for desk in self.desks.values():
            desk.start(on_trouble)

    def close(self) -> None:
        for desk in self.desks.values():
            desk.close()
        self._pricer.close()
        self.registry.close()
        self.directory.close()

    # ---- federations ----------------------------------------------------------------

    def host(self, plan_file: Path, tenant: str | None = None) -> Desk:
        """Begin the study of a locked plan, or go on with it. A new federation is its own
        tenant unless one is named; one that is there stays with its tenant. Another plan than
        the adopted one raises `RoundOpenError` in a round, and the adopted one stays."""
        study = read_locked(plan_file)
        name, now_ms = study.plan.federation.name, self.clock.now_ms()
        row = self.federation(name)
        if row is None:
            made = (secrets.token_hex(16), name, tenant or name)
            desk = self._open(self.registry.add_federation(*made, now_ms))
        elif tenant not in (None, row.tenant):
            raise UsageError(f"{name} belongs to the tenant {row.tenant}")
        else:
            desk = self._tellers[name].desk
        self._adopt(desk, study, now_ms)
        return desk

    def _adopt(self, desk: Desk, study: LockedStudy, now_ms: int) -> None:
        sheet = store_study(study, desk.blobs)
        self.registry.add_study(desk.id, sheet.plan, sheet.task, sheet.bundle, sheet.lock, now_ms)
        terms, lock = study.plan.terms(study.lock.metrics), study.lock
        if terms.budget is not None:
            check_noise(study.plan, self._pricer)
        desk.feed(i.AdoptPlan(lock.plan, lock.task, lock.layout.digest, terms, now_ms))
        desk.open_account()
        if not desk.state.versions:
            desk.feed(i.InstallModel(desk.blobs.put(study.model), now_ms))

    def desk_of(self, site: SiteRow) -> Desk:
        return self.desks[site.federation]

    def federation(self, name: str) -> FederationRow | None:
        return self._rows.get(name)

    def federations(self) -> list[FederationRow]:
        """By name."""
        return [self._rows[name] for name in sorted(self._rows)]

    def teller_named(self, name: str) -> Teller:
        """A federation for its operator. Whether it is for this one is not asked here."""
        if name not in self._tellers:
            raise UnknownFederationError(f"there is no federation `{name}`")
        return self._tellers[name]

    @staticmethod
    def only(tellers: list[Teller]) -> Teller:
        """The federation that is meant when none is named."""
        if len(tellers) != 1:
            raise UnknownFederationError(
                f"there are {len(tellers)} federations here", hint="name the one that you mean"
            )
        return tellers[0]

    def tellers(self) -> list[Teller]:
        return list(self._tellers.values())

    # ---- sites ----------------------------------------------------------------------

    def site(self, site_id: str, *, may_be_out: bool = False) -> SiteRow:
        """A site that may speak; the same answer for one that never was and one that is out.
        With `may_be_out`, also one that has left: it may have lost the answer to that."""
        try:
            row = self.registry.site(site_id)
        except NotEnrolledError:
            raise UnsignedRequestError(_NOBODY) from None
        if may_be_out and row.seat is not None:
            return row
        # Without a seat its enrolment was cut short: it comes again with its token.
        if not self.desk_of(row).has_member(row):
            raise UnsignedRequestError(_NOBODY)
        if row.revoked_ms is not None:
            raise UnsignedRequestError(_NOBODY)
        return row

    def invite(self, federation: str, name: str, listens: str | None = None) -> tuple[str, int]:
        """One line for a site to paste, and when it expires. `listens` is where it is called."""
        desk, now_ms = self.teller_named(federation).desk, self.clock.now_ms()
        if listens is not None:
            check_url(listens)
        secret = self.registry.invite(desk.id, name, now_ms, INVITE_MS)
        self.registry.set_listening(desk.id, name, listens)
        token = JoinToken(self.url, self.authority.fingerprint, desk.id, name, secret)
        return token.text(), now_ms + INVITE_MS

    def enrol(self, body: Enrol) -> Enrolled:
        """A site's place, for a token. Every step may be repeated: a site that lost the reply
        asks again with the same key, and gets the same place."""
        request = body.certificate_request.encode()
        key, now_ms = key_of_request(request), self.clock.now_ms()
        site = secrets.token_hex(16)
        row = self.registry.redeem(body.federation, body.secret, site, key, now_ms, name=body.name)
        desk = self.desk_of(row)
        if row.seat is not None and not desk.has_member(row):
            raise BadTokenError(USED)  # it has left, or was put out
        desk.feed(i.Admit(SiteId(row.id), row.key, now_ms))
        if self.registry.site(row.id).revoked_ms is not None:  # meanwhile
            self._put_out(desk, row.id)
            raise BadTokenError(USED)
        with desk.lock:
            seat = desk.state.roster.seat_of[SiteId(row.id)]
            log_key = desk.state.log_keys[-1]
        # Made slowly, and so only for whom the token has let in.
        words = words_of(self.authority.fingerprint, desk.id, row.key)
        self.registry.set_seat(row.id, int(seat), words)
        return Enrolled(
            site=row.id,
            audience=self.audience,
            federation=desk.id,
            federation_name=desk.name,
            certificate=self._certificate(row.id, request),
            log_key=log_key.hex(),
            words=list(words),
        )

    def _put_out(self, desk: Desk, site: str) -> None:
        with desk.lock:
            seat = desk.state.roster.seat_of[SiteId(site)]
        desk.feed(i.Dismiss(seat, Departure.REVOKED, self.clock.now_ms()))

    def renew(self, site: SiteRow, body: Renew) -> Renewed:
        """A new certificate for the same key."""
        request = body.certificate_request.encode()
        if key_of_request(request) != site.key:
            raise CertificateError("the request is for another key")
        return Renewed(certificate=self._certificate(site.id, request))

    def _certificate(self, site: str, request: bytes) -> str:
        certificate = self.authority.issue_site(request, site, self.clock.now_ms())
        self.registry.set_certificate(site, serial_of(certificate))
        return certificate.decode()

    # ---- operators ------------------------------------------------------------------

    def operator(self, token: str) -> OperatorRow | None:
        return self.registry.operator(token, self.clock.now_ms())

    def url_before(self) -> str:
        """Where the operator's commands on this machine went until now; empty at first."""
        return _held(self.folder / OPERATOR_FILE).get("url", "")

    def write_operator_file(self) -> Path:
        """Address, authority and token for the operator's commands on this machine."""
        path = self.folder / OPERATOR_FILE
        held = _held(path)
        told = {"url": self.url, "authority": self.authority.pem().decode()}
        told["token"] = self._local_token(held.get("token", ""))
        if told != held:
            write_secret(path, Secret(json.dumps(told).encode()))
        return path

    def keep_operator_file(self) -> None:
        """Replace the token in the operator's file before it expires, if there is a file."""
        path = self.folder / OPERATOR_FILE
        held = _held(path)
        if held and (token := self._local_token(held.get("token", ""))) != held.get("token"):
            write_secret(path, Secret(json.dumps(held | {"token": token}).encode()))

    def _local_token(self, held: str) -> str:
        """The token that is held, or a new one when that holds no longer, or not for long."""
        row, now_ms = self.operator(held), self.clock.now_ms()
        if row is not None and row.expires_ms - now_ms > _RENEW_MS:
            return held
        with suppress(UsageError):  # there is none to replace
            self.registry.revoke_operator(_LOCAL)
        return self.registry.new_operator("admin", _LOCAL, now_ms, LIFETIME_MS)


def _held(path: Path) -> dict[str, str]:
    try:
        held = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return held if isinstance(held, dict) else {}


def _authority(folder: Path, now_ms: int) -> Authority:
    """The authority in a folder; made at the first start, its key durable before its
    certificate, so that a crash leaves at most a key that nothing names."""
    key, certificate = folder / "authority.key", folder / "authority.pem"
    if certificate.exists():
        return Authority.load(read_secret(key), certificate.read_bytes())
    made = Authority.make(now_ms)
    write_secret(key, made.key_pem())
    write_durably(certificate, made.pem())
    return made
