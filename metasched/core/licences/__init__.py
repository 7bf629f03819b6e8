"""Floating licences as tokens: leases, and the queue of waiting tasks. Pure.

queue       the queue of tasks that wait for tokens
accounts    pools, leases and reservation windows: who has which tokens
lookahead   shadow times, reservation windows, overtaking
pool        the state of each pool, and groups of queued tasks
windows     free tokens over time
"""
