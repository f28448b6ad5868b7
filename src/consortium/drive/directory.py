"""A coordinator's data directory: the log, the blobs, the keys, and a cache.

log.sqlite      every federation's facts, and the checkpoints that were signed
blobs/          models, updates, plans, by digest
keys/           the log's signing keys: secret, readable by their owner alone
cache.sqlite    may be deleted at any time
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from consortium.core.ids import Secret
from consortium.crypto.recipes import KEY_BYTES, SigningKey
from consortium.errors import StoreFailedError
from consortium.ledger.note import Signer
from consortium.store.cache import SqliteCache
from consortium.store.files import FileBlobs, is_abandoned, sync_folder, write_durably
from consortium.store.sqlite import SqliteLog

SIGNER_NAME = "coordinator"
NEWEST = "checkpoints"  # the folder of each federation's newest checkpoint
_LOCK_WAIT_S = 0.5  # the workers of a killed process die a moment after it
_KEY_SUFFIX, _NEW_SUFFIX = ".key", ".new"


class DataDirectory:
    """Opens, or makes, everything that a coordinator keeps."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None
        try:
            self._make_folders()
            self.log = SqliteLog(path / "log.sqlite")
            self.blobs = FileBlobs(path / "blobs")
            self.cache = SqliteCache(path / "cache.sqlite")
            sync_folder(path)
        except OSError as error:
            raise StoreFailedError(f"{path}: {error.strerror}") from None

    def _make_folders(self) -> None:
        keys = self.path / "keys"
        made = [folder for folder in self.path.parents if not folder.exists()]
        # Updates can reveal records: what is in here is for its owner alone.
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o700)
        keys.mkdir(exist_ok=True, mode=0o700)
        for place in (f"*{_NEW_SUFFIX}", f"*/*{_NEW_SUFFIX}"):
            for leftover in self.path.glob(place):
                if is_abandoned(leftover):
                    leftover.unlink(missing_ok=True)
        # Also what was there: the process that made it may have died before it forced it.
        sync_folder(keys)
        with suppress(PermissionError):  # above us not everything is ours to read
            for folder in (self.path, *made):
                sync_folder(folder.parent)

    def signers(self) -> list[Signer]:
        """Every key that is here."""
        found = []
        for file in sorted((self.path / "keys").glob(f"*{_KEY_SUFFIX}")):
            secret = file.read_bytes()
            if len(secret) != KEY_BYTES:
                raise StoreFailedError(f"{file} is not a key")
            found.append(Signer(SIGNER_NAME, SigningKey.from_secret(Secret(secret))))
        return found

    def new_signer(self) -> Signer:
        """A new key, durable before it signs anything."""
        key = SigningKey.generate()
        name = key.public.hex()
        folder = self.path / "keys"
        try:
            temporary = folder / f"{name}.{os.getpid()}{_NEW_SUFFIX}"
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(key.secret().reveal())
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(folder / f"{name}{_KEY_SUFFIX}")
            sync_folder(folder)
        except OSError as error:
            raise StoreFailedError(f"{folder}: {error.strerror}") from None
        return Signer(SIGNER_NAME, key)

    def keep_newest(self, stream: str, note: bytes) -> None:
        """Keep the newest checkpoint in a file of its own."""
        write_durably(self.path / NEWEST / f"{stream}.note", note)

    def lock(self) -> None:
        """Keep other processes out that ask for the lock too. Coordinators need none: it is
        for those who bring a clock of their own."""
        self._lock = locked(self.path)

    def close(self) -> None:
        self.log.close()
        self.cache.close()
        if self._lock is not None:
            self._lock.close()


def locked(folder: Path) -> IO[str]:
    """The folder's lock, held until it is closed or the process ends."""
    lock = (folder / "lock").open("w")
    ends = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() < ends:
                time.sleep(_LOCK_WAIT_S / 10)
                continue
            lock.close()
            raise StoreFailedError(
                f"{folder} is in use by another process", hint="wait for it, or end it"
            ) from None
        return lock
