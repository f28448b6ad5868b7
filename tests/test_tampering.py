"""Invitations with one bit turned; files and chunks that were read too kindly."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import numpy as np
import pytest

from consortium.core import duties as d
from consortium.core.ids import Digest, Seat, Secret
from consortium.crypto.recipes import SigningKey
from consortium.errors import FormatError, SignatureError, WireError
from consortium.model import Update, load_update, plain_form, save_update
from consortium.plan.toml import parse_plan
from consortium.tensors import read_header, save_tensors
from consortium.testing.processes import PLAN
from consortium.testing.tamper import turned
from consortium.wire.invitation import open_invitation, sign_duty
from consortium.wire.messages import Signature

KEY = SigningKey.from_secret(Secret(bytes(range(32))))
DIGESTS = [Digest(bytes([number]) * 32) for number in range(4)]
PLAN_OF = parse_plan(
    PLAN.format(rounds=3, quorum=2, selection="fraction = 1.0", wait_for=3, duration="60s")
)
DUTIES: dict[str, d.SiteDuty] = {
    "train": d.Train(3, Seat(2), DIGESTS[0], DIGESTS[1], DIGESTS[2], DIGESTS[3], 99, True),
    "evaluate": d.Evaluate(3, Seat(2), DIGESTS[0], DIGESTS[1], 2, 99),
}


def signed(kind: str) -> Signature:
    return sign_duty("ab" * 16, "cd" * 16, DUTIES[kind], PLAN_OF, KEY)


@pytest.mark.parametrize("kind", DUTIES)
def test_invitation_as_it_was_signed_is_taken(kind: str) -> None:
    assert open_invitation(signed(kind), [KEY.public]).duty == DUTIES[kind]


def others(value: object) -> Iterator[object]:
    """Values that are as good as this one, and not it."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1, value ^ (1 << 40))
    elif isinstance(value, str):
        yield from (value[::-1] + "0", "0" * len(value), "")
    else:
        yield from ([], ["a >= 1"], None)


@pytest.mark.parametrize("kind", DUTIES)
def test_every_field_of_an_invitation_is_signed(kind: str) -> None:
    told = signed(kind)
    values = json.loads(told.text)
    for name, value in values.items():
        for other in others(value):
            text = json.dumps(values | {name: other}, sort_keys=True, separators=(",", ":"))
            if text == told.text:
                continue
            with pytest.raises(SignatureError):
                open_invitation(Signature(text=text, signature=told.signature), [KEY.public])


@pytest.mark.parametrize("kind", DUTIES)
def test_every_bit_of_an_invitation_is_signed(kind: str) -> None:
    told = signed(kind)
    for data in turned(told.text.encode()):
        text = data.decode("latin-1")
        with pytest.raises(SignatureError):
            open_invitation(Signature(text=text, signature=told.signature), [KEY.public])
    for data in turned(base64.b64decode(told.signature)):
        changed = Signature(text=told.text, signature=base64.b64encode(data).decode())
        with pytest.raises(SignatureError):
            open_invitation(changed, [KEY.public])


@pytest.mark.parametrize("kind", DUTIES)
def test_invitation_of_another_key_is_refused(kind: str) -> None:
    for keys in ([], [SigningKey.generate().public]):
        with pytest.raises(SignatureError):
            open_invitation(signed(kind), keys)
    with pytest.raises(WireError):
        open_invitation(Signature(text="{}", signature="not base64"), [KEY.public])


# ---- read too kindly before ---------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])
def test_header_of_tensors_has_one_encoding(encoding: str) -> None:
    """`json` guesses the encoding of bytes: two readers could see two files."""
    good = save_tensors({"a": np.zeros(2)})
    length = int.from_bytes(good[:8], "little")
    header = good[8 : 8 + length].decode().encode(encoding)
    with pytest.raises(FormatError):
        read_header(len(header).to_bytes(8, "little") + header + good[8 + length :])


@pytest.mark.parametrize("weight", ["1", " 1.0", "1.0 ", "1_0.0", "\uff11.0", "+1.0", "1e0"])
def test_weight_has_one_spelling(weight: str) -> None:
    update = Update(np.zeros(2, np.float32), 1.0, DIGESTS[1])
    data = save_update(update)
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"]["weight"] = weight
    text = json.dumps(header).encode()
    changed = len(text).to_bytes(8, "little") + text + data[8 + length :]
    with pytest.raises(FormatError):
        load_update(changed, plain_form(2, np.dtype(np.float32)))
