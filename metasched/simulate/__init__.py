"""The laboratory: workloads run by the daemon's own core and policies on simulated clusters.

swf, workload, synthetic   what is run: traces, generators, rules laid over either
clusters, clusters_file    what it runs on: counted processors or machines
manager                    a simulated resource manager: a queue and a local policy
schemes                    how jobs reach clusters: through the core, or as users do without it
engine                     time, events, and the core on top of the managers
metrics                    what a run was worth
settings                   what may be set by name, and its checks
trials, experiments        what an experiment is, and all of them by name
published                  the papers' tables and figures
federations, better        real traces as federations; our ways of sending against the users'
plots                      pictures
"""
