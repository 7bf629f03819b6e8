"""Floating licences as tokens: leases, and the queue of waiting tasks. Pure.

queue       leases, and the queue of tasks that wait for tokens
lookahead   shadow times, reservation windows, overtaking
pool        the state of each pool, and groups of queued tasks
windows     free tokens over time
"""
