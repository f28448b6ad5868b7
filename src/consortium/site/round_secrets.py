"""What a site must still know of a round whose sum is secret when it comes back after a crash.

The round's seeds are sealed with the site's own key, and durable before anything that follows from
them leaves; the lists that were verified lie beside them. All of it is gone once the site has
answered for the others, has dropped out, or hears that the round is over; or a newer one begins.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from consortium.core.ids import Secret
from consortium.crypto.hazmat import agreement, sealing
from consortium.crypto.hazmat.framing import framed
from consortium.crypto.keyfile import read_secret, write_secret
from consortium.crypto.recipes import SigningKey
from consortium.crypto.secure_sum.keys import Seeds
from consortium.errors import (
    CorruptStoreError,
    InvalidInputError,
    StoreFailedError,
    VerificationError,
)
from consortium.store.files import sync_folder, write_durably

SALT_BYTES = 32
SEEDS, SESSION, SHARING, SPLIT = "seeds", "session", "sharing", "split"
CONSENTS = "consents"  # who has signed the split: looked at, and not kept
MASKED = "masked"  # the name of the one file that was masked


class RoundSecrets:
    """A folder with the files of one round at a time."""

    def __init__(self, folder: Path, key: SigningKey) -> None:
        self._folder, self._key = folder, key

    def make_seeds(self, number: int) -> Seeds:
        """The seeds of a round: those that are there, or new ones."""
        if not self._path(number, SEEDS).exists():
            self._make_folder()
            self.forget(but=number)
            salt, secret = os.urandom(SALT_BYTES), Seeds.fresh().secret().reveal()
            sealed = sealing.seal(self._sealing_key(number, salt), secret, b"")
            write_secret(self._path(number, SEEDS), Secret(salt + sealed))
        return self.seeds(number)

    def seeds(self, number: int) -> Seeds:
        """The seeds of a round that was begun; refuses others' files, and damaged ones."""
        path = self._path(number, SEEDS)
        if not path.exists():
            raise CorruptStoreError(f"the seeds of round {number} are not here any more")
        data = read_secret(path).reveal()
        key = self._sealing_key(number, data[:SALT_BYTES])
        try:
            opened = sealing.unseal(key, data[SALT_BYTES:], b"")
        except InvalidInputError:
            raise CorruptStoreError(f"{path} is not what this site has sealed") from None
        return Seeds.from_secret(Secret(opened))

    def keep(self, number: int, what: str, data: bytes) -> None:
        """Have something at hand, durably: the first of its kind in a round. Refuses another one,
        also when the site's log does not know of the first any more."""
        held = self.kept(number, what)
        if held is None:
            self._make_folder()
            write_durably(self._path(number, what), data)
        elif held != data:
            raise VerificationError(f"round {number} has another {what} already")

    def kept(self, number: int, what: str) -> bytes | None:
        path = self._path(number, what)
        try:
            return path.read_bytes() if path.exists() else None
        except OSError as error:
            raise StoreFailedError(f"{path}: {error.strerror}") from None

    def forget(self, *, but: int = 0) -> None:
        """Remove everything, but what belongs to round `but`."""
        if not self._folder.exists():
            return
        with suppress(OSError):  # what stays is removed the next time
            for path in self._folder.iterdir():
                if not path.name.startswith(f"round-{but}."):
                    path.unlink()
            sync_folder(self._folder)

    def _make_folder(self) -> None:
        try:
            self._folder.mkdir(exist_ok=True, mode=0o700)
            sync_folder(self._folder.parent)
        except OSError as error:
            raise StoreFailedError(f"{self._folder}: {error.strerror}") from None

    def _path(self, number: int, what: str) -> Path:
        return self._folder / f"round-{number}.{what}"

    def _sealing_key(self, number: int, salt: bytes) -> bytes:
        """Of one text: the seeds of one round. A file of another round does not open."""
        info = framed("round-secrets", number)
        return agreement.derive(self._key.secret().reveal(), info, sealing.KEY_BYTES, salt)
