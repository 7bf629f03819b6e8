"""The database: each fact once, and what guards it.

    instance   the random name in every tag               primary key
    content    scripts and environments                   by digest; jobs refer to it
    job        what the user asked for, and asks now      as submitted; `changed`: as modified
    task       where each task of a job is                state in the table; `ended` iff final
    attempt    each try in a manager; also the outbox     one live attempt per task (unique index)
    licence    how many tokens there are and are leased   check: leased within the total
    lease      who has and had them                       one live lease per task (unique index)
    reservation  nodes promised for a window            checks of window, size and state
    event      what the core was told, in order           append-only; replay gives every decision
    change     the story: each step with its cause        append-only; refers to its event
    cluster    the lasting facts of each cluster          primary key
    drain      clusters that operators keep closed        primary key
    checkpoint what a start began from: replay may, too   primary key, an event's
    epoch      how many lives of a daemon have begun      one row; only the last one may write
    token      by which a user calls from other hosts     its hash only, unique

`schema` declares it, `migrations` makes it, `store` opens it (in `sqlite` or `postgresql`),
`ledger` writes it (rows of tasks that are `alike` all at once), `reading` answers what people ask,
`restoring` gives a core what it had. `leases` has its licences, `reservations` what is promised (no
node twice), `facts` says what of a cluster's facts is stored, `checks` and `upkeep` look after it.
"""
