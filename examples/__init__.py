"""Worked examples: each is one command, `python -m examples.NAME`, and has a page in
docs/examples/ with what it gave when it was measured."""
