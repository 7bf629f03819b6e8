"""A local cluster: a resource manager for processes of the daemon's host.

adapter         the adapter: submissions, withdrawals, listings
options         its configuration keys
scheduler       the thread that starts queued tasks and records ends
policy_host     a policy of another package: its process, asked within a time
policy_process  that process
task_table      the tasks and the resources of those that are started
windows         reserved windows, and what jobs may do in and beside them
supervision     the supervisors of started tasks: launched, watched, read at their end
fork_servers    requests to fork servers, by account
wakeups         the events for which the thread sleeps
queue_store     the database of submissions and ends
spec            the file that describes a task to its supervisor
host            the fork server of supervisors, their records, permissions of job folders

Each job runs under `metasched/adapters/supervisor.py`, which launcher.toml names by its path.
"""
