"""Every function that reads what comes from outside or from a file: what a good input is, and
what it may raise. A new one that is not listed here is noticed by `test_fuzz.py`.

From outside means: from a peer, or from a file that somebody may have changed. What one process
of ours says to another on the same machine is here as well, unless it is exempt.
"""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from consortium.bundle import Bundle, unpack
from consortium.cli.listen import parse_listen
from consortium.cli.operator import read_access
from consortium.coordinator.files import asked_range
from consortium.core import facts as f
from consortium.core import snapshot
from consortium.core.codec import decode, encode, site_kinds
from consortium.core.ids import Digest, Seat, Secret, SiteId
from consortium.core.site_facts import SiteHeld, TaskApproved
from consortium.core.state import Federation
from consortium.crypto.authority import (
    Authority,
    check_authority,
    fingerprint,
    key_of_request,
    needs_renewal,
    public_key_of,
    request_certificate,
    serial_of,
)
from consortium.crypto.recipes import SigningKey, check_public_key
from consortium.crypto.secure_sum.keys import Seeds, make_keys
from consortium.crypto.secure_sum.session import RoundName, Session, Split, terms_for
from consortium.data.statistics import Statistics
from consortium.drive.lock import parse_lock
from consortium.drive.runs import read_run
from consortium.drive.secret_sum import read_answer as read_shares
from consortium.drive.sweep import read_study
from consortium.errors import ConsortiumError
from consortium.ledger.note import (
    Checkpoint,
    Signer,
    Verifier,
    cosign,
    cosignatures,
    open_checkpoint,
    parse_text,
    sign_checkpoint,
)
from consortium.ledger.proof import Proof, read_proof, verify_proof
from consortium.model import (
    Form,
    Layout,
    Update,
    load_model,
    load_update,
    plain_form,
    read_model_header,
    read_update_header,
    save_model,
    save_update,
)
from consortium.packing.packed import Packing, Sent
from consortium.plan.settings import parse_setting
from consortium.plan.text import parse_condition, parse_duration_ms
from consortium.plan.toml import parse_plan, parse_toml, read_plan
from consortium.plan.values import Plan
from consortium.site.address import read_address
from consortium.site.home import SiteHome
from consortium.site.isolation.cell import Cell, read_cell
from consortium.site.jobs import Done, read_answer, read_job, written
from consortium.site.policy import Policy, parse_size, read_policy
from consortium.tensors import load_tensors, read_header, save_tensors
from consortium.testing.processes import PLAN
from consortium.update.compress import Compress
from consortium.wire import messages, secret_sum
from consortium.wire.invitation import open_invitation
from consortium.wire.messages import Message, Reply, Signature, read_body
from consortium.wire.secret_sum import unpacked
from consortium.wire.signing import RequestLine, parse, read_envelope, sign
from consortium.wire.token import JoinToken, read_token

KEY = SigningKey.from_secret(Secret(bytes(range(32))))
LAYOUT = Layout.of({"b": np.zeros(2, np.float32), "w": np.ones((2, 3), np.float32)})
FORM = plain_form(4, np.dtype(np.float32))
PACKED = [
    Form((("step", 600), ("tau", 1)), FORM.dtype, packing)
    for packing in (Packing(4), Packing(8, Sent.TOP, 0.1), Packing(4, Sent.DRAWN, 0.1, b"plan"))
]
DIGEST = Digest(bytes(range(32)))
AN_ID = "0c5e" * 8


@dataclass(frozen=True, slots=True)
class Parser:
    """`read` gets bytes, and makes of them what the function takes. `names` are the functions
    that are tried with it, as `module.function` below the package."""

    names: tuple[str, ...]
    read: Callable[[bytes], object]
    good: tuple[bytes, ...]
    errors: tuple[type[Exception], ...] = (ConsortiumError,)


def text_of(data: bytes) -> str:
    """Any bytes as text, so that every bit is still in it."""
    return data.decode("latin-1") if b"\xff" in data else data.decode("utf-8", "replace")


def _packed_update(form: Form) -> bytes:
    rng = np.random.default_rng(1)
    made = Compress(form).apply(rng.normal(size=(1, form.size)).astype(form.dtype), [rng])
    return save_update(Update(made.rows[0], 1.0, DIGEST, made.packed[0]), form)


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="parsers-"))


def _in_file(read: Callable[[Path], object], name: str) -> Callable[[bytes], object]:
    """A reader of a file, given its bytes."""

    def read_bytes(data: bytes) -> object:
        path = _folder() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o600)
        path.write_bytes(data)
        return read(path)

    return read_bytes


# ---- good inputs --------------------------------------------------------------------

_FACTS: tuple[Any, ...] = (
    f.SiteAdmitted(Seat(1), SiteId(AN_ID), KEY.public, 5),
    f.SiteReported(Seat(1), (("records", 7), ("gpu", True), ("ram", 1.5), ("os", "linux")), 5),
    f.SitesInvited(1, (Seat(1), Seat(2)), 2, 2, 9, 5),
    f.RoundClosed(1, (Seat(1), Seat(2)), 5),
)
_PLAN = PLAN.format(rounds=3, quorum=2, selection="fraction = 1.0", wait_for=3, duration="60s")
_CHECKPOINT = Checkpoint("consortium/log", 3, bytes(32))
_NOTE = cosign(sign_checkpoint(_CHECKPOINT, Signer("log", KEY)), Signer(AN_ID, KEY), 5)
_PROOF = Proof(1, b"record", (bytes(32), bytes(32)), _NOTE).text()
_TOKEN = JoinToken("https://host:8443", "ab" * 32, AN_ID, "charite", "A" * 27).text()
_LINE = RequestLine("POST", "/v1/rounds/3/update", AN_ID, AN_ID, 3, "00" * 16, "ab" * 32)
_SIGNED = sign(_LINE, KEY)
_LAW = (
    b'{"base":"'
    + b"ab" * 32
    + b'","deadline_ms":5,"base_round":1,"federation":"'
    + b"ab" * 16
    + b'","kind":"evaluate","model":"'
    + b"ab" * 32
    + b'","round":1,"seat":1,"site":"'
    + b"ab" * 16
    + b'"}'
)
_AUTHORITY = Authority.make(1_700_000_000_000)
_CERTIFICATE = _AUTHORITY.issue_site(request_certificate(KEY), AN_ID, 1_700_000_000_000)


def _good_facts() -> tuple[bytes, ...]:
    return tuple(encode(fact) for fact in _FACTS)


def _site_records() -> tuple[bytes, ...]:
    return tuple(encode(fact) for fact in (TaskApproved(DIGEST, DIGEST, 5), SiteHeld(5)))


def _invitation(data: bytes) -> object:
    """Signed, whatever it says: what the coordinator's key signs is still parsed."""
    text = text_of(data)
    raw = base64.b64encode(KEY.sign(b"consortium/invitation/v1\n" + text.encode())).decode()
    return open_invitation(Signature(text=text, signature=raw), [KEY.public])


def _headers(data: bytes) -> object:
    """One header each line."""
    found = [line.partition(":") for line in text_of(data).split("\n")]
    return parse("POST", "/v1/ask", {name: value for name, _, value in found})


def _line(data: bytes) -> object:
    method, _, path = text_of(data).partition(" ")
    return parse(method, path, _SIGNED)


def _sealed_snapshot(data: bytes) -> object:
    """Sealed, whatever it says: of a file on our own disk that rots the seal tells, and of a
    reader with a mistake nothing does."""
    return snapshot.load(snapshot._seal(data, b"last", b"code") + data, b"last", b"code")


def _range(data: bytes) -> object:
    from starlette.datastructures import Headers

    return asked_range(Headers(raw=[(b"range", data)]), 100, '"x"')


def _run_folder(name: str) -> Callable[[bytes], object]:
    def read(path: Path) -> object:
        for other, good in (("rounds.jsonl", "{}\n"), ("summary.json", "{}"), ("plan.toml", _PLAN)):
            if other != name:
                (path.parent / other).write_text(good)
        return read_run(path.parent)

    return _in_file(read, f"run-{name}/{name}")


_STUDY = (
    b'{"form":1,"name":"a","subject":{"plan":"","settings":[{"training.lr":"1"}],"tasks":[""],'
    b'"sites":"","choices":{}},"runs":[{"folder":"a","setting":0,"seed":1,"done":{"model":"","rounds":1,"failed_rounds":0,"finished":"","metrics":{"loss":1.0}}}]}'
)


def _home(path: Path) -> object:
    return SiteHome(path.parent).enrolment


def _statistics() -> bytes:
    path = _folder() / "good.json"
    Statistics(("a", "b"), np.zeros(2), np.ones(2), 5).save(path)
    return path.read_bytes()


def _messages() -> list[type[Message]]:
    """All of them, replies too: an agent reads those."""
    known = (*vars(messages).values(), *vars(secret_sum).values())
    kinds = dict.fromkeys(one for one in known if isinstance(one, type))
    return [one for one in kinds if issubclass(one, Message) and one not in (Message, Reply)]


def _body(kind: type[Message]) -> Parser:
    samples = [_sample(kind.model_json_schema())]
    good = tuple(json.dumps(one).encode() for one in samples)
    return Parser(("wire.messages.read_body",), lambda data: read_body(kind, data), good)


def _sample(schema: dict[str, Any]) -> dict[str, Any]:
    """Something that has the keys of a schema; values of about the right kind."""
    kinds: dict[str, Any] = {"integer": 1, "string": "ab" * 32, "boolean": True, "number": 1.5}
    kinds |= {"array": [1.5, "ab" * 32], "object": {"a": 1}, "null": None}
    found = schema.get("properties", {})
    return {name: kinds.get(told.get("type", "null")) for name, told in found.items()}


def _answer(data: bytes) -> object:
    """Of one of three sites, which have all stayed."""
    names = [SiteId(name) for name in ("a", "b", "c")]
    keys = [make_keys(RoundName("f", 1), name, Seeds.fresh()) for name in names]
    session = Session(RoundName("f", 1), terms_for(3), keys)
    return read_shares(session, names[0], Split(frozenset(names), frozenset()), data)


# ---- the list -----------------------------------------------------------------------


def parsers() -> dict[str, Parser]:
    text = {
        "shares": Parser(
            ("wire.secret_sum.unpacked",), lambda d: unpacked(text_of(d)), (b"c2hhcmVz", b"")
        ),
        "an answer for others": Parser(("drive.secret_sum.read_answer",), _answer, (bytes(51),)),
        "proof": Parser(
            ("ledger.proof.read_proof",), lambda d: read_proof(text_of(d)), (_PROOF.encode(),)
        ),
        "verified proof": Parser(
            ("ledger.proof.verify_proof",),
            lambda d: verify_proof(
                read_proof(text_of(d)), "consortium/log", [Verifier("log", KEY.public)]
            ),
            (_PROOF.encode(),),
        ),
        "checkpoint": Parser(
            ("ledger.note.open_checkpoint",),
            lambda d: open_checkpoint(text_of(d), "consortium/log", [Verifier("log", KEY.public)]),
            (_NOTE.encode(),),
        ),
        "cosignatures": Parser(
            ("ledger.note.cosignatures",),
            lambda d: cosignatures(text_of(d), [Verifier(AN_ID, KEY.public)]),
            (_NOTE.encode(),),
        ),
        "checkpoint's text": Parser(
            ("ledger.note.parse_text",),
            lambda d: parse_text(text_of(d)),
            (_CHECKPOINT.text().encode(),),
        ),
        "token": Parser(
            ("wire.token.read_token",), lambda d: read_token(text_of(d)), (_TOKEN.encode(),)
        ),
        "plan": Parser(
            ("plan.toml.parse_plan",), lambda d: parse_plan(text_of(d)), (_PLAN.encode(),)
        ),
        "toml": Parser(
            ("plan.toml.parse_toml",),
            lambda d: parse_toml(text_of(d)),
            (_PLAN.encode(),),
            (ValueError,),
        ),
        "duration": Parser(
            ("plan.text.parse_duration_ms",),
            lambda d: parse_duration_ms(text_of(d)),
            (b"30m",),
            (ValueError,),
        ),
        "condition": Parser(
            ("plan.text.parse_condition",),
            lambda d: parse_condition(text_of(d)),
            (b"a >= 16",),
            (ValueError,),
        ),
        "size": Parser(
            ("site.policy.parse_size",), lambda d: parse_size(text_of(d)), (b"8GB",), (ValueError,)
        ),
        "address": Parser(
            ("site.address.read_address",),
            lambda d: read_address(text_of(d)),
            (b"https://h:1/p", b"https://[::1]/"),
        ),
        "listen": Parser(
            ("cli.listen.parse_listen",),
            lambda d: parse_listen(text_of(d)),
            (b"[::1]:8443", b"h:1"),
        ),
        "cell": Parser(
            ("site.isolation.cell.read_cell",),
            lambda d: read_cell(text_of(d)),
            (Cell("a", "b").text().encode(),),
            (ValueError, TypeError, KeyError, AttributeError, RecursionError),  # our own process's
        ),
    }
    tensors = {
        "header": Parser(
            ("tensors.read_header",), read_header, (save_model(LAYOUT, np.zeros(8, np.float32)),)
        ),
        "tensors": Parser(
            ("tensors.load_tensors",),
            load_tensors,
            (save_tensors({"a": np.zeros(3), "b": np.ones((1, 2), np.uint8)}),),
        ),
        "model": Parser(
            ("model.load_model", "model.read_model_header"),
            lambda d: (read_model_header(LAYOUT, d), load_model(LAYOUT, d)),
            (save_model(LAYOUT, np.zeros(8, np.float32)),),
        ),
        "update": Parser(
            ("model.load_update", "model.read_update_header"),
            lambda d: (read_update_header(d, FORM), load_update(d, FORM)),
            (save_update(Update(np.zeros(4, np.float32), 1.0, DIGEST)),),
        ),
        **{
            f"packed update {number}": Parser(
                ("model.load_update", "packing.row.open_step"),
                partial(load_update, form=form),
                (_packed_update(form),),
            )
            for number, form in enumerate(PACKED, start=1)
        },
        "layout": Parser(
            ("model.Layout.from_canonical",), Layout.from_canonical, (LAYOUT.canonical(),)
        ),
    }
    binary = {
        "fact": Parser(("core.codec.decode",), decode, _good_facts()),
        "site's fact": Parser(
            ("core.codec.decode",), lambda d: decode(d, site_kinds), _site_records()
        ),
        "snapshot": Parser(
            ("core.snapshot.load",),
            _sealed_snapshot,
            (snapshot.save(Federation(), b"last", b"code")[32:],),
        ),
        "snapshot as it lies": Parser(
            ("core.snapshot.load",),
            lambda d: snapshot.load(d, b"last", b"code"),
            (snapshot.save(Federation(), b"last", b"code"),),
        ),
        "canonical plan": Parser(
            ("plan.values.Plan.from_canonical",),
            Plan.from_canonical,
            (parse_plan(_PLAN).canonical(),),
        ),
        "bundle": Parser(
            ("bundle.unpack",), unpack, (Bundle((("a.py", b"x = 1\n"), ("b/c.py", b""))).pack(),)
        ),
        "lock": Parser(
            ("drive.lock.parse_lock",),
            parse_lock,
            (b'version = 1\nseed = 1\n[task]\nhash = "ab"\n[model]\n',),
        ),
        "envelope": Parser(
            ("wire.signing.read_envelope",),
            read_envelope,
            (_LINE.message() + _SIGNED["Consortium-Signature"].encode() + b"\n",),
        ),
        "headers": Parser(
            ("wire.signing.parse",),
            _headers,
            ("\n".join(f"{k}:{v}" for k, v in _SIGNED.items()).encode(),),
        ),
        "request line": Parser(("wire.signing.parse",), _line, (b"POST /v1/rounds/3/update?a=b",)),
        "invitation": Parser(("wire.invitation.open_invitation",), _invitation, (_LAW,)),
        "range": Parser(("coordinator.files.asked_range",), _range, (b"bytes=0-5",)),
        "job": Parser(("site.jobs.read_job",), read_job, (b'{"job":"check"}',), (ValidationError,)),
        "answer": Parser(
            ("site.jobs.read_answer",), read_answer, (written(Done()),), (ValidationError,)
        ),
    }
    keys = {
        "certificate request": Parser(
            ("crypto.authority.key_of_request",), key_of_request, (request_certificate(KEY),)
        ),
        "certificate": Parser(
            (
                "crypto.authority.fingerprint",
                "crypto.authority.serial_of",
                "crypto.authority.check_authority",
            ),
            lambda d: (
                fingerprint(d),
                serial_of(d),
                needs_renewal(d, 5),
                check_authority(d, fingerprint(d)),
            ),
            (_CERTIFICATE, _AUTHORITY.pem()),
        ),
        "certificate of a connection": Parser(
            ("crypto.authority.public_key_of",),
            public_key_of,
            (base64.b64decode(b"".join(_CERTIFICATE.splitlines()[1:-1])),),
        ),
        "authority": Parser(
            ("crypto.authority.Authority.load",),
            lambda d: Authority.load(Secret(d), _AUTHORITY.pem()),
            (_AUTHORITY.key_pem().reveal(),),
        ),
        "public key": Parser(
            ("crypto.recipes.check_public_key",), lambda d: check_public_key(d[:32]), (KEY.public,)
        ),
    }
    files = {
        "plan.toml": Parser(
            ("plan.toml.read_plan",), _in_file(read_plan, "plan.toml"), (_PLAN.encode(),)
        ),
        "policy.toml": Parser(
            ("site.policy.read_policy", "site.policy.parse_policy"),
            _in_file(read_policy, "policy.toml"),
            (Policy().text().encode(),),
        ),
        "site.toml": Parser(
            ("site.home.SiteHome.open",),
            _in_file(_home, "home/site.toml"),
            (b'url = "https://h"\nsite = "ab"\n',),
        ),
        "operator.json": Parser(
            ("cli.operator.read_access",),
            _in_file(read_access, "operator.json"),
            (b'{"url":"u","authority":"a","token":"t"}',),
        ),
        "statistics": Parser(
            ("data.statistics.Statistics.load",),
            _in_file(Statistics.load, "statistics.json"),
            (_statistics(),),
        ),
        "rounds.jsonl": Parser(
            ("drive.runs.read_run",), _run_folder("rounds.jsonl"), (b'{"number":1,"metrics":{}}\n',)
        ),
        "summary.json": Parser(
            ("drive.runs.read_run",), _run_folder("summary.json"), (b'{"a":1}',)
        ),
        "study.json": Parser(
            ("drive.sweep.read_study",),
            _in_file(lambda path: read_study(path.parent), "study/study.json"),
            (_STUDY,),
        ),
        "setting": Parser(
            ("plan.settings.parse_setting",),
            lambda d: parse_setting(text_of(d)),
            (b"training.lr=0.01,0.1", b'personal.layers=["head"],[a,b]'),
        ),
    }
    bodies = {f"body {kind.__name__}": _body(kind) for kind in _messages()}
    return text | tensors | binary | keys | files | bodies
