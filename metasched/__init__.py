"""metasched: one queue for several batch clusters.

Each package imports only packages below it in this list:
    cli               commands, and the demonstration
    drop_in           commands with the names and words of Slurm's, for users' tools
    tuning            search for a better policy, tested on jobs that no trial has seen
    experiments       published results, reproduced by simulation
    site_setup        what `init site` finds on a host and writes there
    web               pages for browsers, from the answers of the API
    api               HTTP on a unix socket; the process that runs the daemon
    daemon            the scheduler service: database, clusters, licence servers, timers, mail
    simulate          simulated clusters on the same core: workloads, metrics, plots
    config            metasched.toml and the policy file
    db                the ledger in SQL
    licence_servers   sources of licence counts; `licence_servers.base` is the contract
    core              the meta-scheduler without I/O: events in, changes and actions out
    adapters          of resource managers; `adapters.base` is the contract
    forecast          expected starts of waiting tasks: the local policies run forward
    policies          priorities, eligibility, dispatch, pulling, local queues
    client            finds the daemon and sends requests to it; quick to import
    carts             free processors over time under advance reservations
    model             jobs, clusters, listings, licences and reservations as plain data
    recurrence        times that recur, in time zones
    active_until, units, paths, clock, timeouts, errors

Apart from these:
    launcher          runs as root in site mode: acts as the owners of jobs
    build_hook        compiles hot modules with mypyc; unused at run time

No module imports `cli`. Stable for authors of policies and adapters: `model`, `policies.classify`,
`policies.dispatch`, `carts`, `adapters.base`.
"""
