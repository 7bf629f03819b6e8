"""The pure scheduler core: events in, changes and actions out. No clock, no I/O.

scheduler            `Core.step`: applies an event, then decides
events               events, actions, and the outcome of a step
transitions          the transition table of tasks: (state, event) -> state
tasks                tasks, attempts, lines of a task's story
state                state shared by all parts
cluster_view         the core's view of a cluster
task_state_machine   changes the states of tasks
gates                dependencies, begin times, array limits
dependency_status    progress of the jobs that other jobs depend on
dependent_jobs       jobs that wait for others, with their terms counted by status
lease_expiry         licences and slots of tasks that their managers have forgotten
leasing              licence leases of tasks
alternatives         stand-ins of tasks with alternative licences
fair_share           decayed use and shares of users and accounts
share_standings      where users and accounts stand, from a copy of the tree
placement            dispatches queued tasks to clusters
withdrawals          pulls, recalls, drains
user_requests        submit, cancel, hold, release, requeue, modify
dispatch_answers     dispatches that were accepted, rejected, skipped or are uncertain
reconciler           listings and accounting, against live attempts
stale_attempts       attempts that a manager lists again
calendar             acts that recur, and which run of each is the next
calendar_events      events of the calendar
audit_trail          audit records of steps: actor, act and effect
notifications        changes of a step, for mail to owners of jobs and for webhooks
forecast_state       snapshots of the state, from which starts are forecast
recovery             restore from a database, start of the daemon
recovered_state      the stored state from which a fresh core is restored
licences/            pools of licence tokens, and the queue for them
reservations/        advance reservations: offered, bound, moved, broken
"""
