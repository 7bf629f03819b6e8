"""metasched: one queue for several batch clusters.

Pure, each knowing only those above it:
    arrays       ranges of tasks and the variables of each
    patterns     output paths with %A, %a and their like
    model, tags  jobs, clusters, what a cluster says of itself; by which names managers know jobs
    transitions  the one table (state, event) -> state
    licences     floating licences as tokens: pools, counts of them
    carts        free processors over time under advance reservations
    reservations       requests for them, and what one cluster can promise
    reservation_life   their states, and what managers tell of them
    node_assignment    which nodes each gets, so that all have theirs
    moving_slots       who moves where managers choose, so that another one fits
    policies     priorities, eligibility, dispatch, pulling, local queues
    tasks        tasks and their attempts; a line of a task's story
    events       what the core is told and what it answers
    cluster_view, books   what the core knows: of each cluster, of everything
    gates, leasing        what keeps a task with us: dependencies, times, limits; licences
    attempts     what happens to a task: the only place where a state changes
    placing      where waiting tasks go
    moving, wishes, comebacks, absences   pulls and recalls; users; what returns; what is missing
    reservation_book   all of them: what is promised, moved, broken
    core         the meta-scheduler: events in, changes and actions out

Round it:
    adapters     one resource manager each; `adapters.base` is the contract
    db           the ledger in SQL
    probes       who counts licences, one probe a server; `probes.base` is the contract
    worker       the process that hosts one adapter
    config       metasched.toml and the policy file
    daemon       the shell: database, workers, timers
    expectations, listening   when managers expect starts; time limits for answers
    reservation_link   what a cluster's manager is told of reservations
    identity     who is calling, and what they may do
    api, serve   HTTP on a unix socket; the process that runs it all
    doctor       what is wrong, on one page
    compiling    the build with mypyc; of no use at run time
    launcher     alone, as root, in site mode: acts as the owners of jobs

The laboratory, on the same core:
    simulate     workloads, simulated clusters, metrics, plots

In front of it, quick to import:
    units, options, submit   what a user writes
    places, client, cli      finding the daemon and talking to it
    demo                     all of it in a minute

Nothing imports `cli`. Stable for authors of policies and adapters: `model`, `policies.classify`,
`policies.dispatch`, `carts`, `adapters.base`.
"""
