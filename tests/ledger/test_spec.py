"""The ledger's spec: its vectors are what the code computes, and the page shows the vectors.

The second half reads the vectors with nothing but hashlib and Ed25519, so that a mistake
in our code is not its own oracle.
"""

from __future__ import annotations

import base64
import re
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from consortium.core import facts as f
from consortium.core.codec import encode
from consortium.core.ids import Seat, Secret, SiteId
from consortium.crypto.recipes import SigningKey
from consortium.errors import ProofError
from consortium.ledger.merkle import leaf_hash, node_hash, verify_consistency, verify_inclusion
from consortium.ledger.notary import Notary, origin_of
from consortium.ledger.note import Signer, cosign, cosignatures, open_checkpoint
from consortium.ledger.proof import read_proof, verify_proof
from consortium.ledger.tree import Tree
from consortium.store.memory import MemoryCache, MemoryLog

VECTORS = Path(__file__).parent / "vectors" / "ledger.txt"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "spec" / "ledger.md"
ID, TIME_S = "f00d", 1_700_000_000
TEXTS = ("checkpoint_3", "checkpoint_5", "cosigned_5", "proof_2_of_5")


def _vectors() -> dict[str, bytes]:
    lines = [line for line in VECTORS.read_text().splitlines() if not line.startswith("#")]
    return {name: bytes.fromhex(raw) for name, raw in (line.split(" = ") for line in lines)}


V = _vectors()


def _path(name: str) -> tuple[bytes, ...]:
    return tuple(value for key, value in V.items() if re.fullmatch(rf"{name}_\d", key))


# ---- the code gives the vectors -----------------------------------------------------


def _computed() -> dict[str, bytes]:
    log_key = Signer("coordinator", SigningKey.from_secret(Secret(V["log_secret"])))
    witness = Signer("site-1", SigningKey.from_secret(Secret(V["witness_secret"])))
    facts: list[f.Fact] = [
        f.FederationFounded(ID, 1_000_000),
        f.LogKeyAdopted(log_key.key.public, 1_000_000),
        *(f.SiteAdmitted(Seat(n), SiteId(f"site-{n}"), b"", 1_000_000) for n in (1, 2, 3)),
    ]
    records = [encode(fact) for fact in facts]
    leaves = [leaf_hash(record) for record in records]
    log = MemoryLog()
    log.append(ID, 0, records)
    tree = Tree(log, ID, MemoryCache())
    notary = Notary(log, ID, MemoryCache(), origin_of(ID), [log_key])
    notes = {size: notary.checkpoint(size, log_key.key.public) for size in (3, 5)}
    cosigned = cosign(notes[5], witness, TIME_S)
    found = {
        "log_secret": V["log_secret"],
        "log_public": log_key.key.public,
        "log_key_id": log_key.verifier.key_id(),
        "witness_secret": V["witness_secret"],
        "witness_public": witness.key.public,
        "witness_key_id": witness.verifier.key_id(b"\x04"),
    }
    found |= {f"record_{at}": record for at, record in enumerate(records)}
    found |= {f"leaf_{at}": leaf for at, leaf in enumerate(leaves)}
    pairs = [node_hash(leaves[0], leaves[1]), node_hash(leaves[2], leaves[3])]
    found |= {"node_0_1": pairs[0], "node_2_3": pairs[1], "node_0_3": node_hash(*pairs)}
    found |= {f"root_{size}": tree.root(size) for size in (0, 3, 5)}
    found |= {f"checkpoint_{size}": note.encode() for size, note in notes.items()}
    found |= {
        "checkpoint_5_signature": _last_line(notes[5])[4:],
        "cosigned_5": cosigned.encode(),
        "cosignature_5": _last_line(cosigned)[12:],
    }
    for name, path in (
        ("inclusion_2_of_5", tree.inclusion_proof(2, 5)),
        ("consistency_3_to_5", tree.consistency_proof(3, 5)),
    ):
        found |= {f"{name}_{at}": value for at, value in enumerate(path)}
    return found | {"proof_2_of_5": notary.proof(2, 5, notes[5]).text().encode()}


def _last_line(note: str) -> bytes:
    return base64.b64decode(note.splitlines()[-1].split(" ")[-1])


def test_the_code_computes_the_vectors() -> None:
    assert _computed() == V


def test_the_code_verifies_the_vectors() -> None:
    log_key = Signer("coordinator", SigningKey.from_secret(Secret(V["log_secret"]))).verifier
    witness = Signer("site-1", SigningKey.from_secret(Secret(V["witness_secret"]))).verifier
    for size in (3, 5):
        note = V[f"checkpoint_{size}"].decode()
        checkpoint = open_checkpoint(note, origin_of(ID), [log_key])
        assert (checkpoint.size, checkpoint.root) == (size, V[f"root_{size}"])
    (seen,) = cosignatures(V["cosigned_5"].decode(), [witness])
    assert (seen.witness, seen.time_s) == ("site-1", TIME_S)
    verify_inclusion(V["leaf_2"], 2, 5, _path("inclusion_2_of_5"), V["root_5"])
    verify_consistency(3, V["root_3"], 5, V["root_5"], _path("consistency_3_to_5"))
    proof = read_proof(V["proof_2_of_5"].decode())
    assert verify_proof(proof, origin_of(ID), [log_key]).size == 5
    assert proof.record == V["record_2"]


@pytest.mark.parametrize("name", ["inclusion_2_of_5", "consistency_3_to_5"])
def test_a_path_with_any_hash_changed_missing_or_added_is_refused(name: str) -> None:
    path = list(_path(name))
    changed = [[*path[:at], bytes(32), *path[at + 1 :]] for at in range(len(path))]
    for wrong in [*changed, path[:-1], [*path, path[-1]], []]:
        with pytest.raises(ProofError):
            _verify(name, wrong)


def _verify(name: str, path: list[bytes]) -> None:
    if name.startswith("inclusion"):
        verify_inclusion(V["leaf_2"], 2, 5, path, V["root_5"])
    else:
        verify_consistency(3, V["root_3"], 5, V["root_5"], path)


# ---- without our code ---------------------------------------------------------------


def _sha(*parts: bytes) -> bytes:
    return sha256(b"".join(parts)).digest()


def test_hashes_follow_the_definitions() -> None:
    for at in range(5):
        assert V[f"leaf_{at}"] == _sha(b"\x00", V[f"record_{at}"])
    assert V["node_0_1"] == _sha(b"\x01", V["leaf_0"], V["leaf_1"])
    assert V["node_2_3"] == _sha(b"\x01", V["leaf_2"], V["leaf_3"])
    assert V["node_0_3"] == _sha(b"\x01", V["node_0_1"], V["node_2_3"])
    assert V["root_0"] == _sha()
    assert V["root_3"] == _sha(b"\x01", V["node_0_1"], V["leaf_2"])
    assert V["root_5"] == _sha(b"\x01", V["node_0_3"], V["leaf_4"])
    # RFC 6962, section 2.1: the path of leaf 2 of 5, and from 3 leaves to 5.
    assert _path("inclusion_2_of_5") == (V["leaf_3"], V["node_0_1"], V["leaf_4"])
    assert _path("consistency_3_to_5") == (V["leaf_2"], V["leaf_3"], V["node_0_1"], V["leaf_4"])


def test_signatures_are_plain_ed25519_over_the_stated_bytes() -> None:
    for who, name, algorithm in (("log", "coordinator", b"\x01"), ("witness", "site-1", b"\x04")):
        private = Ed25519PrivateKey.from_private_bytes(V[f"{who}_secret"])
        assert private.public_key().public_bytes_raw() == V[f"{who}_public"]
        named = name.encode() + b"\n" + algorithm + V[f"{who}_public"]
        assert V[f"{who}_key_id"] == _sha(named)[:4]
    root = base64.b64encode(V["root_5"]).decode()
    text = f"consortium/{ID}\n5\n{root}\n"
    log_key = Ed25519PublicKey.from_public_bytes(V["log_public"])
    log_key.verify(V["checkpoint_5_signature"], text.encode())
    witness = Ed25519PublicKey.from_public_bytes(V["witness_public"])
    witness.verify(V["cosignature_5"], f"cosignature/v1\ntime {TIME_S}\n{text}".encode())
    line = base64.b64encode(V["log_key_id"] + V["checkpoint_5_signature"]).decode()
    assert V["checkpoint_5"].decode() == f"{text}\n— coordinator {line}\n"
    time = TIME_S.to_bytes(8, "big")
    line = base64.b64encode(V["witness_key_id"] + time + V["cosignature_5"]).decode()
    assert V["cosigned_5"] == V["checkpoint_5"] + f"— site-1 {line}\n".encode()


# ---- the page -----------------------------------------------------------------------


def test_the_page_shows_the_vectors_and_no_others() -> None:
    page = PAGE.read_text()
    table = page.split("## Vectors")[1].split("```text\n")[1].split("```")[0]
    shown: dict[str, str] = {}
    for line in table.splitlines():
        name, raw = line[:22].strip(), line[22:].strip()
        name = name or list(shown)[-1]
        shown[name] = shown.get(name, "") + raw
    assert shown == {name: raw.hex() for name, raw in V.items() if name not in TEXTS}
    for name in ("cosigned_5", "proof_2_of_5"):
        assert f"```text\n{V[name].decode()}```" in page
