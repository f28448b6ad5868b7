"""`consortium demo`: a coordinator and four hospitals on this machine, each its own process."""

from consortium.cli.demo.command import demo

__all__ = ["demo"]
