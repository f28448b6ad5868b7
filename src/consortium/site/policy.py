"""What a site's own people allow, in policy.toml. Without a file: ask, and the defaults.

approve = "listed"                 # "ask": somebody approves every task and plan
tasks = ["4f0c…"]                  # task hashes that need no asking
may_leave = ["update", "scores"]   # no weight: how many records there are stays here
min_sites = 3
isolation = "required"             # no task runs here that could reach the network or other files
memory = "8GB"
time = "2h"
epsilon_weekly = 3.5               # of one data set, over all federations, at `delta`
dataset = "heart"
ledger = "/srv/ledger"             # the same for every home that works on these records
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Annotated, Literal, get_args

import tomli_w
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from consortium.core.account_facts import Limits
from consortium.core.ids import Digest
from consortium.core.terms import Metric
from consortium.errors import (
    PlanError,
    PlanFileError,
    PlanSyntaxError,
    PolicyError,
    UnknownKeyError,
    WrongTypeError,
)
from consortium.model import Layout
from consortium.plan.text import parse_duration_ms
from consortium.plan.toml import parse_toml
from consortium.plan.values import Plan
from consortium.store.files import write_durably
from consortium.tensors import write_header
from consortium.update.weigh import Weighting
from consortium.wire.messages import Hex32

Leaving = Literal["update", "weight", "scores"]
_Limit = Annotated[int, Field(ge=1, lt=1 << 62)]
_Epsilon = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
_LONGEST_WEIGHT = "-1.7976931348623157e+308"  # as long as the text of a float can be
_UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def parse_size(text: str) -> int:
    """Bytes.

    >>> parse_size("8GB"), parse_size("512MiB")
    (8000000000, 536870912)
    """
    found = re.fullmatch(r"([1-9][0-9]{0,5}) ?([MGT]i?B)", text)
    if found is None:
        raise ValueError('a size is a whole number and a unit, such as "512MB" or "8GB"')
    return int(found[1]) * _UNITS[found[2]]


def _valid_size(text: str) -> str:
    parse_size(text)
    return text


def _valid_time(text: str) -> str:
    if parse_duration_ms(text) == 0:
        raise ValueError("no task can be done in no time")
    return text


def _absolute(text: str) -> str:
    if not Path(text).is_absolute():
        raise ValueError(f"`{text}` does not begin with /")
    return text


class Policy(BaseModel):
    """A site's own rules. They bind the agent; nobody else can change them."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    approve: Literal["ask", "listed"] = Field(
        default="ask", description="ask for every task and plan, or not for those in `tasks`"
    )
    # TOML has lists only: this is where a list may stand for a tuple.
    tasks: Annotated[tuple[Hex32, ...], Field(strict=False)] = Field(
        default=(), description="hashes of tasks that need no asking, if approve is listed"
    )
    may_leave: Annotated[tuple[Leaving, ...], Field(strict=False)] = Field(
        default=("update", "weight", "scores"),
        description="what may leave: update; weight (made of how many training records); "
        "scores (sums of metrics, and how many test records)",
    )
    max_bytes_per_round: _Limit | None = Field(
        default=None, description="largest update, in bytes; unset: any"
    )
    min_sites: _Limit = Field(default=2, description="smallest quorum of a plan")
    masks: Literal["as planned", "required"] = Field(
        default="as planned",
        description="required: no update leaves but in sums of which nobody sees the parts",
    )
    known: Annotated[tuple[Hex32, ...], Field(strict=False)] = Field(
        default=(), description="keys of sites whose people have compared them with this site's"
    )
    min_known: Annotated[int, Field(ge=0, lt=1 << 62)] = Field(
        default=0, description="of those, how many every masked sum must have"
    )
    max_rounds: _Limit | None = Field(default=None, description="rounds of a plan; unset: any")
    isolation: Literal["required", "available", "off"] = Field(
        default="available",
        description="required: no task runs unless it is kept from the network, other files and "
        "other programs; available: as far as this system can; off: not at all",
    )
    memory: Annotated[str, AfterValidator(_valid_size)] | None = Field(
        default=None, description='most memory of a task, such as "8GB"; unset: 80 % of all'
    )
    time: Annotated[str, AfterValidator(_valid_time)] | None = Field(
        default=None,
        description='longest work in a round, such as "2h"; unset: the longest that a round lasts',
    )
    readable: Annotated[
        tuple[Annotated[str, AfterValidator(_absolute)], ...], Field(strict=False)
    ] = Field(default=(), description="other files and folders that a task may read")
    epsilon_weekly: _Epsilon | None = Field(
        default=None, description="most epsilon of the data set in any 7 days; unset: no limit"
    )
    epsilon_monthly: _Epsilon | None = Field(
        default=None, description="most epsilon of the data set in any 30 days; unset: no limit"
    )
    epsilon_lifetime: _Epsilon | None = Field(
        default=None, description="most epsilon of the data set ever; unset: no limit"
    )
    # Not the plan's: with a large one, whoever writes plans would make every limit meaningless.
    delta: float = Field(
        default=1e-5,
        gt=0,
        lt=1,
        allow_inf_nan=False,
        description="of these limits, whatever a plan's own is; below one in the records here",
    )
    dataset: str = Field(
        default="records",
        pattern=r"^[A-Za-z0-9_-]{1,48}$",
        description="name of the records whose budget is spent",
    )
    ledger: Annotated[str, AfterValidator(_absolute)] | None = Field(
        default=None,
        description="folder of a ledger that several homes with one data set share, to be counted "
        "together; unset: in the home. A ledger that was used is moved there first",
    )

    @model_validator(mode="after")
    def _can_know(self) -> Policy:
        if self.min_known > len(self.known):
            raise ValueError(f"min_known is {self.min_known}, and known has {len(self.known)} keys")
        return self

    @property
    def limits(self) -> Limits:
        """The most that may be spent of the data set."""
        return Limits(self.delta, self.epsilon_weekly, self.epsilon_monthly, self.epsilon_lifetime)

    def approves(self, task: Digest) -> bool:
        """Whether this task needs no asking."""
        return self.approve == "listed" and task.hex() in self.tasks

    def objections(self, plan: Plan, layout: Layout, metrics: tuple[Metric, ...] = ()) -> list[str]:
        """All that this policy has against a plan, in words; an empty list when it may run,
        once somebody has approved it. `metrics` are those that the task reports."""
        return [*self._leaving(plan, update_bytes(plan, layout, metrics)), *self._sizes(plan)]

    def check(self, plan: Plan, layout: Layout, metrics: tuple[Metric, ...] = ()) -> None:
        """Raise the first objection, if there is one."""
        for objection in self.objections(plan, layout, metrics):
            raise PolicyError(objection, hint=self.remedy([objection], plan, layout, metrics))

    def remedy(
        self, objections: list[str], plan: Plan, layout: Layout, metrics: tuple[Metric, ...] = ()
    ) -> str:
        """The command that allows what was objected to, where words are missing in `may_leave`;
        else the one that shows the policy."""
        missing = []
        for word in get_args(Leaving):
            wider = self.model_copy(update={"may_leave": (*self.may_leave, word)})
            if not set(objections) <= set(wider.objections(plan, layout, metrics)):
                missing.append(word)
        if not missing:
            return "consortium site policy    # shows what is allowed"
        words = [word for word in get_args(Leaving) if word in (*self.may_leave, *missing)]
        return f"consortium site policy --set may_leave={','.join(words)}"

    def _leaving(self, plan: Plan, size_bytes: int) -> list[str]:
        found, strategy = [], plan.strategy
        if self.masks == "required" and not plan.is_masked:
            found.append("the plan shows every update to the coordinator; here masks are required")
        most = self.max_bytes_per_round
        if "update" not in self.may_leave:
            found.append("updates may not leave this site")
        if most is not None and size_bytes > most:
            found.append(f"an update has {size_bytes:,} bytes, and {most:,} may leave a round")
        # With noise in shares a weight is zero. Else sums of rounds can be compared, as scores can.
        if "weight" not in self.may_leave and not plan.has_noise_shares:
            if strategy.weighing().by is not Weighting.UNIFORM:
                found.append("the plan weighs sites by how many records they have")
            if strategy.is_normalised:
                found.append("the plan asks for the number of local steps, which tells the records")
        if "scores" not in self.may_leave and plan.evaluation.enabled:
            found.append("the plan asks for scores, which may not leave this site")
        return found

    def _sizes(self, plan: Plan) -> list[str]:
        found, federation = [], plan.federation
        if federation.quorum < self.min_sites:
            found.append(
                f"the plan publishes what {federation.quorum} sites made; "
                f"{self.min_sites} are the fewest here"
            )
        if self.max_rounds is not None and federation.rounds > self.max_rounds:
            found.append(
                f"the plan has {federation.rounds} rounds; {self.max_rounds} are the most here"
            )
        return found

    def text(self) -> str:
        """As policy.toml has it: what is not at its default."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_defaults=True, exclude_none=True))

    def write(self, path: Path) -> None:
        write_durably(path.resolve(), self.text().encode())


def update_bytes(plan: Plan, layout: Layout, metrics: tuple[Metric, ...] = ()) -> int:
    """The most bytes that the file of an update has under this plan; those of a task's metrics
    with it, where they are masked together."""
    form = plan.form(layout, 0, metrics)  # of any round: they have one size
    header = write_header(form.specs, {"base": "0" * 64, "weight": _LONGEST_WEIGHT})
    return len(header) + form.size_bytes


def read_policy(path: Path) -> Policy:
    """The policy in a file; the default one where there is none. What cannot be understood is
    refused: then nothing runs."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return Policy()
    except (OSError, UnicodeDecodeError):
        raise PlanFileError(f"cannot read {path}", hint="consortium site policy") from None
    try:
        values = parse_toml(text)
    except ValueError as error:
        raise PlanSyntaxError(f"not TOML: {error}", where=str(path)) from None
    return parse_policy(values, path.name)


def parse_policy(values: dict[str, object], where: str = "") -> Policy:
    """The policy of these values, as TOML gives them."""
    try:
        return Policy.model_validate(values)
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
        key = str(detail["loc"][0]) if detail["loc"] else "min_known"  # the rule of two keys
        message = detail["msg"].removeprefix("Value error, ")
        raise _wrong(key, detail["type"], message, where) from None


def _wrong(key: str, kind: str, message: str, where: str) -> PlanError:
    if kind == "extra_forbidden":
        close = difflib.get_close_matches(key, Policy.model_fields, n=1)
        known = f"known keys: {', '.join(Policy.model_fields)}"
        hint = f"did you mean {close[0]}?" if close else known
        return UnknownKeyError(f"unknown key `{key}` in a policy", hint=hint, where=where)
    hint = f"{key}: {Policy.model_fields[key].description}"
    return WrongTypeError(f"`{key}`: {message.removeprefix('Input ')}", hint=hint, where=where)
