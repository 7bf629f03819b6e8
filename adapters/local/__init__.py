"""A local cluster: a resource manager for processes of the daemon's host.

adapter       the adapter: submissions, withdrawals, listings
options       its configuration keys
scheduler     the queue, running tasks, and the thread that starts and ends them
queue_store   the database of submissions and ends
spec          the file by which a supervisor runs a task
host          the fork server of supervisors, their records, permissions of job folders

Each job runs under `metasched/adapters/supervisor.py`, which launcher.toml names by its path.
"""
