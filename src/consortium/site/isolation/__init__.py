"""What the task's process may not do, enforced by the system it runs on.

`cell` describes what a task may reach, `enter` shuts the present process in, `probe` tries
whether that holds, and `findings` says in words what is enforced here and what is not. Each
measure stands alone: one that the system does not offer is left out and told, never assumed.

The modules that run inside (`enter` and what it imports) use the standard library alone: they
work before any other library is loaded, because a process with threads cannot be shut in.
"""
