"""A site's directory: one enrolment in one federation, and all that the site keeps of it.

    site.toml         who this site is, and whom it works with; written last, when it has joined
    keys/             site.key and site.pem: made here, never sent, for their owner alone
    certificate.pem   the site's, from the federation's authority
    authority.pem     the authority's own
    policy.toml       what the site's people allow
    log.sqlite        the site's own facts; beside it ledger/, what its records have paid for
    blobs/            models, plans, tasks, and every update that was ever made here
    states/           private layers and the like: they never leave
    tasks/            unpacked task files, by task hash
    secrets/          of a round whose sum is secret: sealed seeds, and what was agreed on
    members.json      the keys of sites that were met in such rounds
    receipts/         proofs that the coordinator's log has this site's updates
    work/             what the task's process may write to; it goes with the process
    child.log         what the task printed; it may show records
    listen.json       where it waits for calls, if it does (`way.py`); heard: when it last was
    trouble-*.json    what is wrong now, for people (`troubles.py`)

Every write is durable before anybody relies on it. Commands may work beside the agent: what
they decide goes through the log.
"""

from __future__ import annotations

import fcntl
import secrets
import time
import tomllib
from functools import cached_property
from pathlib import Path
from typing import IO, Annotated

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from consortium.bundle import Bundle
from consortium.core.ids import Digest, Secret
from consortium.crypto.keyfile import read_secret, write_secret
from consortium.crypto.recipes import KEY_BYTES, SigningKey
from consortium.drive.states import FileStates
from consortium.errors import (
    CorruptStoreError,
    NotEnrolledError,
    StoreFailedError,
    UsageError,
)
from consortium.site.jobs import HERE
from consortium.site.leftovers import sweep
from consortium.site.unpacked import unpack_into
from consortium.store.files import FileBlobs, sync_folder, write_durably
from consortium.store.sqlite import SqliteLog
from consortium.wire.messages import Count, Hex16, Hex32, Name

DEFAULT_HOME = Path("site")
_SHEET = "site.toml"
_LOCK_WAIT_S = 0.5  # a killed agent's lock is free a moment after it
_OWN_SEED_BITS = 62


class Enrolment(BaseModel):
    """What site.toml holds: this site's place, and what it verifies everything with."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    name: Name
    site: Hex16
    federation: Hex16
    federation_name: str
    url: str
    audience: Hex16
    log_key: Hex32
    # TOML has lists only: this is where a list may stand for a tuple.
    words: Annotated[tuple[str, ...], Field(strict=False)]
    data: str  # the path of the site's records; empty: none was given yet
    enrolled_ms: Count
    token_hash: str = ""  # of the secret that it joined with; empty: of a home that is older
    seed: int | None = None  # for studies that must be repeatable; None: nobody can foresee it


class SiteHome:
    """Opens what is there. `prepare` and `enrol` make a home, `open` is for everybody else."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._lock: IO[str] | None = None

    @classmethod
    def prepare(cls, path: Path) -> SiteHome:
        """A home for a site that is about to join: its folders and its key, durable before
        anybody is told of it. Doing it again finds the same key."""
        if is_home(path):
            raise UsageError(
                f"{path} is already the home of a site",
                hint="consortium agent goes on there; --home DIR takes another folder",
            )
        home = cls(path)
        try:
            home._make_folders()
        except OSError as error:
            raise StoreFailedError(f"{path}: {error.strerror}") from None
        home._make_key()
        return home

    @classmethod
    def open(cls, path: Path) -> SiteHome:
        """The home of a site that has joined."""
        if not is_home(path):
            raise NotEnrolledError(
                f"no site has joined a federation in {path}", hint="consortium join TOKEN"
            )
        home = cls(path)
        home.enrolment  # noqa: B018  # read it now: what is wrong with it is told first
        return home

    def _make_folders(self) -> None:
        made = [folder for folder in self.path.parents if not folder.exists()]
        # Updates can reveal records: what is in here is for its owner alone.
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o700)
        for name in ("keys", "tasks", "receipts", "states"):
            (self.path / name).mkdir(exist_ok=True, mode=0o700)
        for folder in (self.path, *made):
            sync_folder(folder.parent)
        sync_folder(self.path)

    # ---- who we are -----------------------------------------------------------------

    @cached_property
    def enrolment(self) -> Enrolment:
        """Read when it is first asked for: see `change`."""
        path = self.path / _SHEET
        try:
            return Enrolment.model_validate(tomllib.loads(read_secret(path).reveal().decode()))
        except (ValueError, RecursionError, ValidationError):  # not TOML, not text
            raise CorruptStoreError(f"{path} is not what joining wrote") from None

    def enrol(self, enrolment: Enrolment, certificate: str, authority: str) -> None:
        """Keep what joining gave. The sheet is written last: with it the site has joined."""
        write_durably(self.authority_file, authority.encode())
        write_durably(self.certificate_file, certificate.encode())
        self._write_sheet(enrolment)

    def renew(self, certificate: str) -> None:
        """Keep a new certificate for the same key."""
        write_durably(self.certificate_file, certificate.encode())

    def change(self, *, data: Path | None = None, url: str | None = None) -> None:
        """Point to other records, or to the coordinator's new address."""
        changes: dict[str, object] = {}
        if data is not None:
            changes["data"] = str(data.resolve())
        if url is not None:
            changes["url"] = url
        self._write_sheet(self.enrolment.model_copy(update=changes))

    def _write_sheet(self, enrolment: Enrolment) -> None:
        text = tomli_w.dumps(enrolment.model_dump(mode="json", exclude_none=True))
        write_secret(self.path / _SHEET, Secret(text.encode()))
        self.__dict__["enrolment"] = enrolment

    # ---- keys -----------------------------------------------------------------------

    @property
    def certificate_file(self) -> Path:
        return self.path / "certificate.pem"

    @property
    def authority_file(self) -> Path:
        return self.path / "authority.pem"

    @property
    def key_file(self) -> Path:
        """The private key as PEM, for TLS."""
        return self.path / "keys" / "site.pem"

    @property
    def policy_file(self) -> Path:
        return self.path / "policy.toml"

    @cached_property
    def key(self) -> SigningKey:
        path = self.path / "keys" / "site.key"
        secret = read_secret(path)
        if len(secret.reveal()) != KEY_BYTES:
            raise CorruptStoreError(f"{path} is not a key")
        return SigningKey.from_secret(secret)

    def _make_key(self) -> None:
        path = self.path / "keys" / "site.key"
        if not path.exists():
            write_secret(path, SigningKey.generate().secret())
        if not self.key_file.exists():
            write_secret(self.key_file, self.key.pem())

    def own_seed(self) -> int:
        """A number of this site's own, drawn once: for the first values of what stays here."""
        path = self.path / "keys" / "own.seed"
        if not path.exists():
            write_secret(path, Secret(str(secrets.randbits(_OWN_SEED_BITS)).encode()))
        text = read_secret(path).reveal()
        if not text.isdigit():
            raise CorruptStoreError(f"{path} is not a number")
        return int(text)

    # ---- stores ---------------------------------------------------------------------

    @cached_property
    def log(self) -> SqliteLog:
        return SqliteLog(self.path / "log.sqlite")

    @cached_property
    def blobs(self) -> FileBlobs:
        return FileBlobs(self.blobs_folder)

    @property
    def states(self) -> FileStates:
        """What stays here; the site itself has the seat `HERE`."""
        return FileStates(self.states_folder)

    @property
    def blobs_folder(self) -> Path:
        return self.path / "blobs"

    @property
    def states_folder(self) -> Path:
        return self.path / "states"

    @property
    def child_log(self) -> Path:
        return self.path / "child.log"

    def settle(self, number: int, is_counted: bool) -> None:
        """Round `number` is over, and the log says so: what was kept in it becomes this
        site's own if its update counted. May be done again."""
        self.states.settle(number, [HERE] if is_counted else [])

    def keep_receipt(self, number: int, proof: str) -> None:
        write_durably(self._receipt(number), proof.encode())

    def receipt(self, number: int) -> str | None:
        """The proof that round `number` has this site's update; None while there is none."""
        path = self._receipt(number)
        return path.read_text() if path.exists() else None

    def _receipt(self, number: int) -> Path:
        return self.path / "receipts" / f"round-{number}.proof"

    # ---- tasks ----------------------------------------------------------------------

    def unpack(self, bundle: Bundle, task: Digest) -> Path:
        """The folder with exactly the task's files. One in which anything is otherwise, for
        whatever reason, is made anew: what runs is what was approved."""
        return unpack_into(self.path / "tasks" / task.hex(), bundle)

    # ---- one agent ------------------------------------------------------------------

    def lock(self) -> None:
        """Keep a second agent out of this home, until `close`; and clear away what the one
        before, if it was killed, left half-written."""
        file = (self.path / "lock").open("w")
        ends = time.monotonic() + _LOCK_WAIT_S
        while not _is_locked(file):
            if time.monotonic() > ends:
                file.close()
                raise StoreFailedError(
                    f"an agent runs in {self.path} already", hint="end it, or leave it to its work"
                )
            time.sleep(_LOCK_WAIT_S / 10)
        self._lock = file
        sweep(self.path)

    def close(self) -> None:
        if "log" in self.__dict__:
            self.log.close()
        if self._lock is not None:
            self._lock.close()


def _is_locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def has_agent(path: Path) -> bool:
    """Whether an agent runs in this home."""
    probe = SiteHome.open(path)
    try:
        probe.lock()
    except StoreFailedError:
        return True
    finally:
        probe.close()
    return False


def is_home(path: Path) -> bool:
    """Whether a site has joined a federation in this folder."""
    return (path / _SHEET).is_file()
