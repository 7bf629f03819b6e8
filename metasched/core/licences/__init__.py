"""Floating licences as tokens: leases, and the queue of waiting tasks. Pure.

queue          the queue of tasks that wait for tokens
accounts       pools, leases and reservation windows: who has which tokens
lookahead      shadow times, reservation windows, overtaking
pool           the state of each pool
order          the order of queued tasks by turns of users
ranked_groups  groups of queued tasks by rank, without sorting all of them
groups         groups of queued tasks
windows        free tokens over time
"""
