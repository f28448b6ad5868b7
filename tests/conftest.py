"""Shared set-up: deterministic Hypothesis in CI, longer runs for `make soak`."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from consortium.cli.report import Voice

settings.register_profile(
    "ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "soak", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(autouse=True)
def _plain_voice() -> None:
    """Commands that a test calls in this process speak plainly, whatever the test before asked."""
    Voice.json, Voice.verbosity = False, 0
