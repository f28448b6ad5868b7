"""The command line: one file a noun. Commands import what they need when they run."""

from consortium.cli.app import main

__all__ = ["main"]
