"""Real processes on this machine, looked at from outside."""
