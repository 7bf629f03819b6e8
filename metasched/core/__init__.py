"""The pure scheduler core: events in, changes and actions out. No clock, no I/O.

scheduler            `Core.step`: one event, in the order in which a decision runs
events               what the core receives and returns
transitions          the one table (state, event) -> state
tasks                tasks, attempts, one line of a task's story
state                what all parts share
cluster_view         one cluster as the core sees it
task_state_machine   the only place where a task's state changes
gates                dependencies, begin times, array limits
leasing              licence leases follow the tasks
placement            where queued tasks go
withdrawals          pulls, recalls, drains
user_requests        cancel, hold, release, requeue, modify
reconciler           listings compared with attempts
stale_attempts       attempts that a manager lists again
licences/            pools of licence tokens, and the queue for them
reservations/        advance reservations: offered, bound, moved, broken
"""
