"""Differential privacy: what a release costs, how much noise it needs, who may still spend."""
