"""The tamper-evident side of the log."""
