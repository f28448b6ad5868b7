"""`consortium audit`: verify a data directory or a receipt, without trusting anybody."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consortium.cli.report import command, data, envelope, say
from consortium.errors import AuditError, UsageError, VerificationError

if TYPE_CHECKING:
    from consortium.drive.verify import Audit
    from consortium.ledger.proof import Proof

app = typer.Typer(help="Verify what a coordinator left behind.", no_args_is_help=True)

_MOST_SHOWN = 20
Key = Annotated[
    str | None, typer.Option(help="The log's first public key, 64 hex digits, as you hold it.")
]


@app.command("verify")
@command
def verify(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A coordinator's data directory.")],
    key: Key = None,
    receipt: Annotated[
        list[Path] | None, typer.Option(help="A receipt that must be in this log; repeatable.")
    ] = None,
) -> None:
    """Check the log, every blob, sum, checkpoint and signature; exit 7 when anything is wrong."""
    from consortium.coordinator.evidence import Evidence, Tally
    from consortium.drive.verify import verify_directory

    if not (folder / "log.sqlite").is_file():
        raise UsageError(
            f"{folder} is not a data directory: it has no log.sqlite",
            hint="a data directory is what `consortium serve` and `simulate --data DIR` make",
        )
    proofs = [_read(path) for path in receipt or []]
    signatures = Tally()
    audit = verify_directory(
        folder,
        key=_key(key),
        receipts=proofs,
        checks=[lambda blobs: Evidence(blobs, signatures)],
    )
    told = _told(audit) | {"signatures": signatures.count}
    if not audit.is_clean:
        _show(audit)
        error = AuditError(f"{len(audit.findings)} finding(s) in {folder}")
        error.details = told
        raise error
    envelope("audit verify", told)
    data(
        f"ok: {audit.federations} federation(s), {audit.facts} facts, {audit.blobs} blobs, "
        f"{audit.checkpoints} checkpoints, {audit.receipts} receipts"
    )
    if signatures.count:
        data(f"{signatures.count} requests of sites are signed by the keys that were admitted")
    if audit.unsigned:
        data(f"{audit.unsigned} of these facts are newer than the newest checkpoint")
    for number in audit.keys:
        word = "began with your key" if key else "began with key (compare it with yours)"
        say(f"the log {word} {number}")


@app.command("receipt")
@command
def receipt(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A receipt.")],
    key: Annotated[str, typer.Option(help="The log's public key, 64 hex digits.")],
) -> None:
    """Check a receipt with the public key alone; exit 7 when it does not hold."""
    from consortium.core.codec import decode
    from consortium.drive.directory import SIGNER_NAME
    from consortium.ledger.note import Verifier
    from consortium.ledger.proof import verify_proof

    proof = _read(file)
    origin = proof.note.partition("\n")[0]
    verifier = Verifier(SIGNER_NAME, _key(key) or b"")
    checkpoint = verify_proof(proof, origin, [verifier])
    fact = type(decode(proof.record)).__name__
    envelope(
        "audit receipt",
        {"log": origin, "index": proof.index, "fact": fact, "size": checkpoint.size},
    )
    data(f"ok: fact {proof.index} of {origin} is {fact}, signed over {checkpoint.size} facts")


def _read(path: Path) -> Proof:
    from consortium.ledger.proof import read_proof

    try:
        return read_proof(path.read_text())
    except (OSError, UnicodeDecodeError):
        raise VerificationError(f"cannot read {path}") from None


def _key(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise UsageError("a key is 64 hex digits")
    return key


def _told(audit: Audit) -> dict[str, object]:
    from dataclasses import asdict

    return asdict(audit)


def _show(audit: Audit) -> None:
    for finding in audit.findings[:_MOST_SHOWN]:
        data(f"{finding.where}: {finding.what}")
    if len(audit.findings) > _MOST_SHOWN:
        data(f"… and {len(audit.findings) - _MOST_SHOWN} more")
