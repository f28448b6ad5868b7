"""What every section of a plan has in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from consortium.plan.text import parse_duration_ms


def _valid_duration(text: str) -> str:
    parse_duration_ms(text)
    return text


# TOML has lists only: this is where a list may stand for a tuple.
Names = Annotated[tuple[str, ...], Field(strict=False)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Duration = Annotated[str, AfterValidator(_valid_duration)]


class Section(BaseModel):
    """Frozen; unknown keys and numbers that are not finite are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
