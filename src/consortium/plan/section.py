"""What every section of a plan has in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

# TOML has lists only: this is where a list may stand for a tuple.
Names = Annotated[tuple[str, ...], Field(strict=False)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


class Section(BaseModel):
    """Frozen; unknown keys and numbers that are not finite are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
