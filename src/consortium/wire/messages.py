"""What sites, operators and the coordinator say to each other: every body, in one place.

Strict: UTF-8, no coercion, no unknown keys, no NaN, no key twice, no deep nesting. Digests
and keys travel as lower-case hexadecimal. docs/spec/wire.md lists the routes that carry these.
"""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from consortium.errors import WireError

MAX_JSON_BYTES = 1 << 20
CHUNK_BYTES = 1 << 20  # an upload counts by these: what a cut costs at most
MAX_CHUNKS_BYTES = 8 << 20  # that one request carries
MAX_WAIT_MS = 60_000
MAX_DEPTH = 8  # of a body: no message has more than four levels

Hex32 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Hex16 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}(\.[A-Za-z0-9_-]{1,64})?$")]
Label = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Code = Annotated[str, StringConstraints(pattern=r"^E0[0-9]{3}$")]
Count = Annotated[int, Field(ge=0, lt=1 << 62)]
Number = Annotated[float, Field(allow_inf_nan=False)]
ReportName = Annotated[str, StringConstraints(min_length=1, max_length=64)]
Whole = Annotated[int, Field(gt=-(1 << 62), lt=1 << 62)]
ReportValue = bool | Whole | Number | Annotated[str, StringConstraints(max_length=200)]


class Message(BaseModel):
    """A body. Whatever is not declared is refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Reply(Message):
    """What a coordinator answers. A newer one may say more than an agent knows."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


# ---- joining ------------------------------------------------------------------------


class Enrol(Message):
    """A site with a token asks for its place. The request for a certificate carries its key."""

    federation: Hex16
    name: Name
    secret: Annotated[str, StringConstraints(min_length=16, max_length=200)]
    certificate_request: Annotated[str, StringConstraints(max_length=4000)]  # PEM


class Enrolled(Reply):
    """The site's place, and what it needs to verify everything that follows."""

    site: Hex16
    audience: Hex16
    federation: Hex16
    federation_name: str
    certificate: str  # PEM
    log_key: Hex32
    words: list[str]


class Renew(Message):
    certificate_request: Annotated[str, StringConstraints(max_length=4000)]


class Renewed(Reply):
    certificate: str


# ---- asking -------------------------------------------------------------------------


class Ask(Message):
    """What is there to do? Answered at once when there is news, else after `wait_ms`."""

    seen_size: Count  # facts of the coordinator's log that this site has witnessed
    own_size: Count  # facts of the site's own log
    unsettled: Count = 0  # a round whose end this site must know; 0: none
    have: str = Field(default="", max_length=64)  # the mark of the last answer
    wait_ms: Annotated[int, Field(ge=0, le=MAX_WAIT_MS)] = 0
    cosignature: Annotated[str, StringConstraints(max_length=65_536)] = ""  # a cosigned note
    objection: Code | None = None  # why this site refuses to work


class WireOffer(Reply):
    since: Count
    path: list[Hex32]
    note: str


class Signature(Reply):
    """A text of the coordinator's, and its signature (base64) with the log's key."""

    text: str
    signature: str


class SettledRound(Reply):
    round: Count
    is_counted: bool


class Answer(Reply):
    """The answer to `Ask`. `invitation` is None while the site has nothing to do."""

    mark: str  # give it back as `have`
    now_ms: Count
    offer: WireOffer
    invitation: Signature | None = None
    settled: SettledRound | None = None
    own_size: Count = 0  # the most that this site ever said its own log has
    is_finished: bool = False
    round: Count = 0  # the open round; 0: none
    version: Count = 0
    model: Hex32 | None = None


class Report(Message):
    report: Annotated[dict[ReportName, ReportValue], Field(max_length=64)] = Field(
        default_factory=dict
    )


class StudySheet(Reply):
    """Which blobs a site needs to review the study: fetched, verified, shown, approved."""

    plan: Hex32
    task: Hex32
    layout: Hex32
    bundle: Hex32
    lock: Hex32


# ---- answering ----------------------------------------------------------------------


class Submission(Message):
    """The upload is complete; count it in round `round`."""

    update: Hex32
    size_bytes: Count


class ReceiptReply(Reply):
    """`status` is received, accepted, counted or not counted; `proof` is that the log has it."""

    update_id: Hex32
    status: str
    why: str | None = None
    proof: str


class UploadState(Reply):
    offset: Count
    is_complete: bool = False  # this site has sent these bytes before: nothing to send


class FailureNote(Message):
    failure: Annotated[str, StringConstraints(pattern=r"^[A-Z_]{1,40}$")]


class ScoreNote(Message):
    model: Hex32
    samples: Count
    candidate: Annotated[list[Number], Field(max_length=100)]
    base: Annotated[list[Number], Field(max_length=100)]


class Taken(Reply):
    taken: bool = True


# ---- operators ----------------------------------------------------------------------


class Invite(Message):
    """A place for a site of this name. `listens` is where it is to be called, if it is not to
    connect by itself."""

    name: Name
    listens: Annotated[str, StringConstraints(max_length=300)] | None = None


class Listens(Message):
    """Where a site is called from now on; None: it connects by itself."""

    url: Annotated[str, StringConstraints(max_length=300)] | None


class Invited(Reply):
    """The line that the site pastes, and until when it works."""

    token: str
    expires_ms: int


class NewToken(Message):
    """A token for an operator. Its scope is a tenant's federations, a list of federations, or
    what is in both; `everywhere` says that it has no bounds, which must be said."""

    label: Label
    role: Literal["viewer", "officer", "lead", "admin"]
    tenant: Name | None = None
    federations: Annotated[list[Name], Field(min_length=1, max_length=1000)] | None = None
    everywhere: bool = False
    days: Annotated[int, Field(ge=1, le=366)] = 90


class TokenTold(Reply):
    """What is known of a token; the federations by name."""

    label: str
    role: str
    tenant: str | None
    federations: list[str] | None
    created_ms: int
    expires_ms: int


class TokenMade(TokenTold):
    """The token itself, told once, and the address where it is good."""

    token: str
    url: str


# ---- the seed's own routes ----------------------------------------------------------


class ServerStart(Message):
    """Let a federation run, or run again after a hold."""

    federation: Name | None = None  # None: the only one


class ServerStarted(Reply):
    status: str
    config: dict[str, Any]


class ClientRegister(Message):
    location_id: Name
    model_type: Annotated[str, StringConstraints(max_length=200)]


class ClientRegistered(Reply):
    client_id: str
    registered: bool


class ClientTrain(Message):
    """Asked of a site that listens: what has come of its training in this round, from this
    model? It trains because it was invited, by a signature; this is no invitation."""

    round: Count
    model_weights: Hex32  # the model's digest: its bytes go by digest, as always
    local_epochs: Annotated[int, Field(ge=1, le=1_000_000)] = 5


class ClientTrained(Reply):
    """What a site has made. All of it is in its outbox; None: the plan lets no such number
    leave. Loss and accuracy are those of the model that the site tried last."""

    client_id: str
    model_weights: Hex32  # the update's digest
    num_samples: Number | None = None
    loss: Number | None = None
    accuracy: Number | None = None


Body = TypeVar("Body", bound=BaseModel)


def read_body(kind: type[Body], data: bytes) -> Body:
    """The message in a request's bytes; refuses what is not exactly one."""
    if len(data) > MAX_JSON_BYTES:
        raise WireError("the message is too long")
    try:
        value = json.loads(
            data.decode(), object_pairs_hook=_object, parse_constant=_refuse, parse_float=_finite
        )
        _check_depth(value)
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the body"
        raise WireError(f"{place}: {first['msg']}") from None
    except (ValueError, RecursionError):
        raise WireError("the body is not JSON in a form that is allowed here") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key stands twice")
    return values


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _finite(text: str) -> float:
    """`1e999` is a number to JSON, and infinity to Python."""
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for one in level for child in _containers(one)]
        if not level:
            return
    raise ValueError("nested too deeply")


def _containers(value: Any) -> list[Any]:
    inside = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list):
        return []
    return [child for child in inside if isinstance(child, dict | list)]
