"""The plan: every decision of a federation in one frozen value."""

from consortium.plan.toml import parse_plan, read_plan, write_plan
from consortium.plan.values import Plan

__all__ = ["Plan", "parse_plan", "read_plan", "write_plan"]
