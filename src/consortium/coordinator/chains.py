"""A private key with its certificates, into a TLS context."""

from __future__ import annotations

import os
import ssl
import tempfile
from pathlib import Path

from consortium.errors import StoreFailedError


def load_chain(context: ssl.SSLContext, pem: bytes, folder: Path) -> None:
    """The ssl module reads keys from files only: one that is there for a moment, for its owner
    alone. Its name says whose it is, so that the next start removes what a kill left."""
    try:
        handle, name = tempfile.mkstemp(dir=folder, suffix=f".{os.getpid()}.new")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(pem)
            context.load_cert_chain(name)
        finally:
            os.unlink(name)
    except ssl.SSLError:  # an OSError as well, but not the disk's
        raise
    except OSError as error:
        raise StoreFailedError(f"{folder}: {error.strerror}") from None
