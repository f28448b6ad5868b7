"""Storage and formats."""

from __future__ import annotations

from consortium.errors.root import ConsortiumError, Fault


class StoreError(ConsortiumError):
    """Storage failed or refused."""

    code = "E0600"


class ConflictError(StoreError):
    """Somebody else appended first. The loser reads what is new and decides again."""

    code = "E0601"
    http_status = 409


class MissingBlobError(StoreError):
    """No blob has that digest."""

    code = "E0602"
    http_status = 404


class CorruptBlobError(StoreError):
    """The bytes under a digest do not have that digest."""

    code = "E0603"
    exit_code = 7


class StoreFailedError(StoreError):
    """The disk or the database refused: full, broken, busy or of another format.

    What was acknowledged before is safe; what was refused was not acknowledged.
    """

    code = "E0604"
    http_status = 503
    advice = "free space or mend the disk; the work goes on from the log by itself"


class CorruptStoreError(StoreError):
    """The database is damaged: it is not what was written."""

    code = "E0605"
    exit_code = 7
    advice = "restore a backup, and let the sites compare it with their checkpoints"


class DiskFullError(StoreFailedError):
    """The coordinator's disk is nearly full: it takes no more uploads. The rest goes on."""

    code = "E0606"
    advice = "make room on the disk of the data directory; sites come again by themselves"


class CodecError(ConsortiumError):
    """Bytes are not the one canonical encoding of a known fact, or a value cannot be one."""

    code = "E0701"
    fault = Fault.PEER
    http_status = 422
    exit_code = 7


class ModelFileError(ConsortiumError):
    """A model file is not safetensors of the expected layout."""

    code = "E0801"
    fault = Fault.CALLER
    http_status = 422
    exit_code = 3


class WeakKeyError(ConsortiumError):
    """A public key is malformed, not canonical, or of small order, and proves nothing."""

    code = "E0407"
    fault = Fault.PEER
    http_status = 422
    exit_code = 7
