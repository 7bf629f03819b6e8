"""The database: each fact is stored once, and a constraint guards it.

    instance     random names of this database in its tags       primary key
    content      scripts and environments                         by digest; jobs refer to it
    job          jobs as submitted, and as modified since         primary key
    task         state of each task of a job                      checks: state; `ended` iff final
    attempt      each try in a manager; also the outbox           a single live attempt per task
    licence      tokens of each licence, total and leased         check: leased within the total
    lease        current and past leases of tokens                a single live lease per task
    reservation  advance reservations and their windows           checks: window, size, state
    dependency   jobs that wait for the end of other jobs         primary key
    event        inputs of the core, in order                     append-only; replayable
    change       story: each state change with its cause          append-only; refers to its event
    audit        acts and conditions, with their actors          append-only; id grows with the time
    daily_use    use of ended tasks, by day and user              primary key: the day and whose use
    period_use   sums of it over closed days and months, by key   valid with the row by no key
    licence_sample  figures of licences over time                 primary key: licence and time
    outbox       mails and events of webhooks                     checks: state; `ended` iff over
    limit_mail   shares of time limits that were mailed           primary key: the run and share
    cluster      last lasting information of each cluster         primary key
    drain        clusters that operators keep closed              primary key
    calendar     acts that recur, and the next run of each        primary key: the name
    policy_version  policies that were in force, with their authors   primary key: the number
    shadow       the candidate policy beside the one in force     primary key: the number
    shadow_decision  its last decisions, beside those in force    primary key
    checkpoint   state of the core just before an event           primary key: the event
    epoch        number of daemon starts                          one row; fences off older daemons
    token        access tokens of users on other hosts            hash only, unique

`schema` declares the tables and `migrations` creates them. `backends` chooses `sqlite` or
`postgresql` by URL; both implement `store.Database`. `ledger` writes, with `job_rows` and
`bulk_rows`; `queries` reads for commands and the API; `recovery` rebuilds the state of the core;
both read the targets of dependencies by `dependency_targets`.
`audit`, `daily_use`, `leases`, `outbox`, `reservations` and `cluster_info` encode their parts.
`reports` reads sums by day, and of longer periods from `period_use`. `integrity` checks a database,
with `replay`; `pruning` deletes old rows. `downgrade` takes the tables back to an earlier schema.
"""
