"""metasched: one queue for several batch clusters.

Each package imports only packages below it in this list:
    cli               commands, and the demonstration
    drop_in           commands with the names and words of Slurm's, for users' tools
    laboratory        simulated clusters on the same core, published experiments, tuning
    site_setup        what `init site` finds on a host and writes there
    web               pages for browsers, from the answers of the API
    api               HTTP on a unix socket; the process that runs the daemon
    daemon            the scheduler service: database, clusters, licence servers, timers, mail
    config            metasched.toml and the policy file
    db                the ledger in SQL
    licence_servers   sources of licence counts; `licence_servers.base` is the contract
    plug_ins          heuristics of the site, in a process of their own
    core              the meta-scheduler without I/O: events in, changes and actions out
    adapters          of resource managers; `adapters.base` is the contract
    forecast          expected starts of waiting tasks: the local policies run forward
    policies          priorities, eligibility, dispatch, pulling, local queues
    client            finds the daemon and sends requests to it; quick to import
    processes         child processes: commands, confined code, messages to them
    carts             free processors over time under advance reservations
    model             jobs, clusters, listings, licences and reservations as plain data
    times             clocks, deadlines of calls, times that recur
    version           version and commit of this code
    checkout          reads the commit of a checkout without git
    errors, paths

Apart from these:
    launcher          runs as root in site mode: acts as the owners of jobs

No module imports `cli`, and only `cli` imports `laboratory`. Stable for authors of policies and
adapters: `model`, `policies.classify`, `policies.dispatch`, `carts`, `adapters.base`.
"""
