"""What a coordinator tells its operator, read once: the views of `coordinator.telling`.

A newer coordinator may say more than these; what is missing or of another kind is refused.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from consortium.drive.history import RoundRecord
from consortium.errors import WireError

Kind = TypeVar("Kind")


class Told(BaseModel):
    """A view. From JSON, where a pair is a list."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class OpenRound(Told):
    number: int
    phase: str
    step: str
    deadline_ms: int
    quorum: int
    target: int
    invited: list[str]
    received: list[str]
    waiting_for: list[str]
    fallen: dict[str, str]


class Rounds(Told):
    done: int
    of: int | None


class LogTold(Told):
    facts: int
    key: str


class Status(Told):
    federation: str
    standing: str
    finished: str | None
    plan: str | None
    task: str | None
    rounds: Rounds
    round: OpenRound | None
    waits: str | None
    next_round_ms: int
    version: int
    model: str | None
    sites: int
    log: LogTold
    now_ms: int
    last: RoundRecord | None
    protects: list[str]


class Unreached(Told):
    since_ms: int
    why: str


class Site(Told):
    name: str
    seat: int | None
    words: list[str]
    enrolled_ms: int
    revoked_ms: int | None
    seen_ms: int | None
    objection: str | None
    departure: str | None = None  # how it came to be out
    listens: str | None = None  # where it is called
    unreached: Unreached | None = None  # it cannot be called


class Tensor(Told):
    name: str
    dtype: str
    shape: list[int]


class Model(Told):
    version: int
    digest: str
    round: int
    is_current: bool
    published_ms: int | None
    metrics: dict[str, float]
    size_bytes: Annotated[int, Field(alias="bytes")]
    tensors: list[Tensor] = Field(default_factory=list)


class WindowTold(Told):
    window: str
    limit: float | None
    spent: float
    after_next: float


class PaidRound(Told):
    round: int
    standing: str
    at_ms: int


class CostTold(Told):
    sigma: float
    releases: int
    rate: float


class SpendingTold(Told):
    at_ms: int
    costs: list[CostTold]


class Budget(Told):
    """A privacy account. Without one, nothing but the federation's name."""

    federation: str
    account: str | None
    unit: str = ""
    delta: float | None = None
    accountant: str = ""
    noise_multiplier: float | None = None
    windows: list[WindowTold] = Field(default_factory=list)
    is_affordable: bool = True
    frees_ms: int | None = None
    rounds: list[PaidRound] = Field(default_factory=list)
    spendings: list[SpendingTold] | None = None  # of the whole account, whoever spent it


class Token(Told):
    label: str
    role: str
    tenant: str | None
    federations: list[str] | None
    created_ms: int
    expires_ms: int


def read_view(kind: type[Kind], value: Any) -> Kind:
    """The view in an answer."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise WireError(f"the coordinator's answer is not what it should be: {place}") from None
