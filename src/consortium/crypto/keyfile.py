"""Secrets in files that only their owner can read.

The file is made with its narrow mode, never narrowed afterwards: there is no moment at which
somebody else could have opened it. It is durable before its name is there.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from consortium.core.ids import Secret
from consortium.errors import StoreFailedError

_OWNER_ONLY = 0o600


def write_secret(path: Path, secret: Secret) -> None:
    """Put `secret` into `path`, mode 0600, in place of what was there. After a power cut the
    file has the old bytes or the new ones."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        temporary.unlink(missing_ok=True)  # of a dead process that had our number
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
        with os.fdopen(handle, "wb") as file:
            file.write(secret.reveal())
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        _sync(path.parent)
    except OSError as error:
        raise StoreFailedError(f"{path}: {error.strerror}") from None


def read_secret(path: Path) -> Secret:
    """The bytes of a file that only its owner can read; one that others can read is refused."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise StoreFailedError(
                    f"{path} can be read by others (mode {mode:04o})",
                    hint=f"chmod 600 {path}, and take a new key if somebody may have read it",
                )
            return Secret(file.read())
    except OSError as error:
        raise StoreFailedError(f"{path}: {error.strerror}") from None


def _sync(folder: Path) -> None:
    """Make the rename survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
