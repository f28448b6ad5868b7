"""Signed notes and checkpoints in the form of C2SP `signed-note` and `tlog-checkpoint`.

    consortium/5f0e…        <- origin: which log
    41                      <- how many facts
    7DZ3…=                  <- the Merkle root, in base64
                            <- an empty line ends what is signed
    — coordinator 6Jk1…=    <- a signature: key id and signature, in base64

A *cosignature* (C2SP `tlog-cosignature`, v1) is a witness's signature on the same text at
a stated time. Keys are named by a hash of name, algorithm and key, so that a line made by
an unknown key is skipped and one that claims a known key must verify.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from hashlib import sha256

from consortium.crypto.recipes import SIGNATURE_BYTES, SigningKey, check_public_key, verify
from consortium.errors import NoteError, SignatureError

MAX_NOTE_BYTES = 1 << 16
_ED25519, _COSIGNATURE = b"\x01", b"\x04"
_KEY_ID_BYTES, _TIME_BYTES, _ROOT_BYTES = 4, 8, 32
_LINE = re.compile(r"— (\S+) ([A-Za-z0-9+/]+={0,2})")
_NAME = re.compile(r"[^\s+]{1,200}")
_SIZE = re.compile(r"0|[1-9][0-9]{0,18}")


@dataclass(frozen=True, slots=True)
class Verifier:
    """A named public key that is trusted for something."""

    name: str
    key: bytes

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise NoteError("a key has a name without spaces and plus signs")
        check_public_key(self.key)

    def key_id(self, algorithm: bytes = _ED25519) -> bytes:
        named = self.name.encode() + b"\n" + algorithm + self.key
        return sha256(named).digest()[:_KEY_ID_BYTES]


@dataclass(frozen=True, slots=True)
class Signer:
    """A named private key."""

    name: str
    key: SigningKey

    @property
    def verifier(self) -> Verifier:
        return Verifier(self.name, self.key.public)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a log commits to: its origin, how many records it has, and their root."""

    origin: str
    size: int
    root: bytes

    def text(self) -> str:
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"


@dataclass(frozen=True, slots=True)
class Cosignature:
    """A witness saw this checkpoint, consistent with all it saw before, at this time."""

    witness: str
    time_s: int


def sign_checkpoint(checkpoint: Checkpoint, signer: Signer) -> str:
    """The checkpoint as a note with the log's own signature."""
    text = checkpoint.text()
    parse_text(text)  # never sign what nobody could read
    signature = signer.key.sign(text.encode())
    return text + "\n" + _signature_line(signer.name, signer.verifier.key_id() + signature)


def cosign(note: str, signer: Signer, time_s: int) -> str:
    """The note with a witness's cosignature added at the end."""
    text = _split(note)[0]
    signature = signer.key.sign(_cosigned(text, time_s))
    key_id = signer.verifier.key_id(_COSIGNATURE)
    stamped = time_s.to_bytes(_TIME_BYTES, "big") + signature
    return note + _signature_line(signer.name, key_id + stamped)


def open_checkpoint(note: str, origin: str, log_keys: list[Verifier]) -> Checkpoint:
    """The checkpoint in a note that one of the log's keys signed; raises otherwise."""
    text, lines = _split(note)
    checkpoint = parse_text(text)
    if checkpoint.origin != origin:
        raise NoteError("the checkpoint is of another log")
    known = {(verifier.name, verifier.key_id()): verifier for verifier in log_keys}
    is_signed = False
    for name, raw in lines:
        verifier = known.get((name, raw[:_KEY_ID_BYTES]))
        if verifier is not None:
            _verify(verifier, text.encode(), raw[_KEY_ID_BYTES:])
            is_signed = True
    if not is_signed:
        raise NoteError("the checkpoint has no signature of the log's key")
    return checkpoint


def cosignatures(note: str, witnesses: list[Verifier]) -> list[Cosignature]:
    """Who of these witnesses cosigned the note. A line that claims one of them and does
    not verify is an error, not an absence."""
    text, lines = _split(note)
    known = {(verifier.name, verifier.key_id(_COSIGNATURE)): verifier for verifier in witnesses}
    found: dict[str, Cosignature] = {}
    for name, raw in lines:
        verifier = known.get((name, raw[:_KEY_ID_BYTES]))
        if verifier is not None:
            time_s = int.from_bytes(raw[_KEY_ID_BYTES : _KEY_ID_BYTES + _TIME_BYTES], "big")
            _verify(verifier, _cosigned(text, time_s), raw[_KEY_ID_BYTES + _TIME_BYTES :])
            found[name] = Cosignature(name, time_s)  # one voice a witness
    return list(found.values())


def parse_text(text: str) -> Checkpoint:
    """The checkpoint in a note's text: exactly three lines, each in its one form."""
    lines = text.split("\n")
    if len(lines) != 4 or lines[3] or not lines[0] or not _SIZE.fullmatch(lines[1]):
        raise NoteError("a checkpoint has an origin, a size and a root, a line each")
    if not lines[0].isprintable():
        raise NoteError("a checkpoint's origin is printable")
    root = _decode(lines[2])
    if len(root) != _ROOT_BYTES:
        raise NoteError(f"a root has {_ROOT_BYTES} bytes")
    return Checkpoint(lines[0], int(lines[1]), root)


def _split(note: str) -> tuple[str, list[tuple[str, bytes]]]:
    """(what is signed, the signature lines)."""
    if len(note) > MAX_NOTE_BYTES:
        raise NoteError("the note is too long")
    text, blank, signatures = note.partition("\n\n")
    if not blank or not signatures.endswith("\n"):
        raise NoteError("the note has no signatures")
    lines = []
    for line in signatures[:-1].split("\n"):
        match = _LINE.fullmatch(line)
        if match is None:
            raise NoteError("a signature line is malformed")
        lines.append((match[1], _decode(match[2])))
    return text + "\n", lines


def _signature_line(name: str, raw: bytes) -> str:
    return f"— {name} {base64.b64encode(raw).decode()}\n"


def _cosigned(text: str, time_s: int) -> bytes:
    return f"cosignature/v1\ntime {time_s}\n{text}".encode()


def _verify(verifier: Verifier, message: bytes, signature: bytes) -> None:
    try:
        if len(signature) != SIGNATURE_BYTES:
            raise SignatureError("a signature of the wrong length")
        verify(verifier.key, message, signature)
    except SignatureError:
        raise NoteError(f"the signature of {verifier.name} does not fit") from None


def _decode(text: str) -> bytes:
    """Base64 in its one canonical form."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise NoteError("malformed base64") from None
    if base64.b64encode(raw).decode() != text:
        raise NoteError("base64 that is not in its canonical form")
    return raw
