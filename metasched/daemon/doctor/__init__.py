"""Checks of an installation: `metasched doctor`, `serve --check` and reloads.

findings          every finding: id, component, severity, meaning, remedy
check_runs        runs checks side by side, each with a deadline
checks            which checks there are
folder_checks     files and folders: owner, mode, filesystem, free space
account_checks    users and groups that the configuration names
launcher_checks   the launcher of site mode, the mail program, secrets of webhooks
database_checks   the database, held tasks, clocks by stored starts
cluster_checks    each cluster, by calls of its own; licence servers
daemon_checks     the running daemon, by its own answers
probe_jobs        a small job for each cluster, on request
"""
