"""What a site's agent and the process that runs the task say to each other.

Small messages only, as JSON: models, states, updates and records are files that both know.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from consortium.core.facts import Failure
from consortium.core.ids import Seat
from consortium.wire.messages import Count, Hex32

UPDATE, OUT = "update", "out"  # in the folder for what is made: a file; a folder for files
HERE = Seat(1)  # the site itself, in its own store of states
Seated = Annotated[int, Field(ge=0, lt=1 << 62)]  # 0: this site has no seat yet


class _Note(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


# ---- jobs ---------------------------------------------------------------------------


class Open(_Note):
    """The first job: which task, under which plan, on which records."""

    job: Literal["open"] = "open"
    blobs: str
    states: str
    made: str  # where what is made goes; the agent takes it from there
    folder: str  # with the task's files
    entry: str
    metrics: list[tuple[str, bool]]  # (name, higher is better), as they were approved
    plan: Hex32
    layout: Hex32
    pinned: Hex32 | None
    site: str
    data: str
    seed: int | None  # None: randomness that nobody can foresee
    own_seed: Count


class Check(_Note):
    job: Literal["check"] = "check"
    seat: Seated


class Train(_Note):
    job: Literal["train"] = "train"
    round: Count
    seat: Seated
    base: Hex32
    server_state: Hex32 | None
    kept: Hex32 | None  # what the site keeps with the base, as its log names it


class Evaluate(_Note):
    job: Literal["evaluate"] = "evaluate"
    round: Count
    seat: Seated
    model: Hex32
    base: Hex32
    base_round: Count
    kept: Hex32 | None
    pending: Hex32 | None  # what training in this round made of it


class Predict(_Note):
    job: Literal["predict"] = "predict"
    seat: Seated
    model: Hex32
    model_round: Count  # the round that made it
    kept: Hex32 | None
    records: str
    out: str  # a file's name, in `OUT`


class Export(_Note):
    job: Literal["export"] = "export"
    seat: Seated
    model: Hex32
    model_round: Count
    kept: Hex32 | None
    out: str


Job = Open | Check | Train | Evaluate | Predict | Export
_JOBS: TypeAdapter[Job] = TypeAdapter(Annotated[Job, Field(discriminator="job")])


def read_job(data: bytes) -> Job:
    return _JOBS.validate_json(data)


# ---- answers ------------------------------------------------------------------------


class Confined(_Note):
    """The first word of a new process, before it has seen the task: what it is shut in by."""

    answer: Literal["confined"] = "confined"
    has: list[str]
    why: dict[str, str]


class Done(_Note):
    """Nothing more to say."""

    answer: Literal["done"] = "done"


class Tensor(_Note):
    name: str
    shape: list[int]
    dtype: str


class Stock(_Note):
    """What leaves and what stays, as the task itself says."""

    answer: Literal["stock"] = "stock"
    leaves: list[Tensor]
    private: list[Tensor]
    frozen: list[Tensor]


class Made(_Note):
    """The update is the file `UPDATE`; what stays is pending among the states."""

    answer: Literal["made"] = "made"
    records: Count
    kept: Hex32 | None


class Scores(_Note):
    answer: Literal["scores"] = "scores"
    samples: Count
    candidate: list[float]
    base: list[float]


class Failed(_Note):
    """An error of ours by its name. The text stays at the site, and so does this."""

    answer: Literal["failed"] = "failed"
    error: str
    message: str
    hint: str
    failure: Annotated[str, Field(pattern="^(" + "|".join(code.name for code in Failure) + ")$")]


Answer = Confined | Done | Stock | Made | Scores | Failed
_ANSWERS: TypeAdapter[Answer] = TypeAdapter(Annotated[Answer, Field(discriminator="answer")])


def read_answer(data: bytes) -> Answer:
    return _ANSWERS.validate_json(data)


def written(note: Job | Answer) -> bytes:
    return note.model_dump_json().encode()
