"""A site of a federation: its home, its agent, and what its own people decide."""
