"""`python -m consortium` is the `consortium` command."""

from consortium.cli import main

main()
