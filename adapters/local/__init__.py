"""A local cluster: a resource manager for processes of the daemon's host.

adapter      the adapter: submissions, withdrawals, listings
host         the fork server of supervisors, their records, permissions of job folders

Each job runs under `metasched/adapters/supervisor.py`, which launcher.toml names by its path.
"""
