"""Adapters: each drives one kind of resource manager, in a worker process of its own.

An adapter submits tasks under a tag, withdraws tasks, and lists the whole manager at once; it
makes no scheduling decision. A request without an answer raises `Unreachable`, never a failure. A
task that a listing does not prove absent may still be queued. Read `base.py`, the contract, then
`local/adapter.py`.
"""
