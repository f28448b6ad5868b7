"""Evidence that does not hold."""

from __future__ import annotations

from consortium.errors.root import ConsortiumError, Fault


class VerificationError(ConsortiumError):
    """Evidence does not hold: the record was changed, or it is not what it says."""

    code = "E0900"
    fault = Fault.PEER
    http_status = 422
    exit_code = 7


class ProofError(VerificationError):
    """A Merkle proof does not lead to the root that it should lead to."""

    code = "E0901"


class NoteError(VerificationError):
    """A signed note is malformed, or lacks the signature that it needs."""

    code = "E0902"


class WitnessError(VerificationError):
    """A witness refuses a checkpoint: the log shrank, forked, or is another one."""

    code = "E0903"
    http_status = 409


class AuditError(VerificationError):
    """An audit found the record broken; the findings say what and where."""

    code = "E0904"


class RestoredBackupError(VerificationError):
    """This site's own log is older than what the coordinator has seen of it: an old backup was
    put back. The site refuses to spend, because it has forgotten what it spent."""

    code = "E0905"
    http_status = 409
    advice = "put the newest copy of the site's folder back; if it is lost, ask the lead first"
