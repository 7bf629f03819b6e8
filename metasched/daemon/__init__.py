"""The daemon: connects the pure core to the database and the clusters.

service               the scheduler service: events, transactions, actions
host                  the interface of the service for the modules below
cluster_connection    polls a cluster and executes actions on it
pending_actions       actions that wait for a cluster
worker_process        the process that hosts the adapter of a cluster
reservation_sync      creates and deletes reservations at a cluster's manager
licence_monitor       queries licence servers at intervals
licence_history       stores the figures of licences over time
limit_mails           mails about running jobs that near their time limits
usage_collector       queries accounting for the use of ended tasks, and stores it
manager_start_times   start times that managers expect for pending tasks
database_size         its size, measured now and then for metrics
forecaster            expected starts of waiting tasks, compared with real starts
forecast_process      the process that computes them
forecast_policies     local policies in it; a policy may hang
shadow                a candidate policy beside the one in force
shadow_acts           starts and stops it
shadow_process        the process that runs it
progress              whether the scheduler gets on, for the watchdog of systemd
descriptors           file descriptors, and how many of them connections may take
notices               audit records that no event causes
audit_log             text and JSON lines of the log
repeated_lines        the log, with counts for repeated lines
calendar_runner       runs the entries of the calendar, each once
calendar_limits       later runs of entries that lower totals of licences, for reservations
shared_with           accounts that share a reservation
series                series of reservations, each occurrence reserved weeks ahead
backups               copies of the database that the calendar makes
backup_threads        threads that write these copies, longer than a service runs
scheduled_policies    policies that the calendar puts in force, longer than a service runs
policy_versions       the policy in force: the site's file, or a policy activated since
policy_activation     puts another policy in force, or the previous policy
notification_sender   delivers the outbox: mails, and events of webhooks
notification_texts    texts of mails, bodies of webhooks
mail                  runs the mail program
mail_pauses           pauses of mails after failures
webhook               signs and sends a request to a webhook
circuit_breaker       delays calls that keep failing
reload                takes a changed configuration over into the running daemon
late_settings         the settings of a daemon that has waited for its database
doctor                checks of the installation (a package)
"""
