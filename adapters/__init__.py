"""Adapters: each drives one kind of resource manager, in a worker process of its own.

An adapter queues what it is told under a tag, asks for the end of it, and lists the whole manager
at once; it decides nothing. A request without an answer is `Unreachable`, never a failure; what a
listing does not prove to be absent may still be there. Read `base.py`, the contract, then
`local.py`.
"""
