"""Kills and failing disks at every durable call of a coordinator and of an agent.

A federation of two sites and two rounds, each part a process of its own: the coordinator
with its HTTP application, registry and uploads; each site with its log, blobs, states and
receipts. What is not durable is left out or brought nearer: requests travel over a socket of
this machine without TLS, the task runs inside the agent, and who is next is said from
outside, so that every run makes the same calls in the same order.
"""
