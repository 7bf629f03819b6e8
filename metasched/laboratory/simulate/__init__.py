"""Simulation: workloads run by the daemon's own core and policies on simulated clusters.

swf, workload, synthetic   workloads: traces, generators, overlays
submissions                arrays of a workload, as the daemon receives them
recorded_workload          a period of a site from its ledger
accounting_history         a period of a site without metasched, from sacct and qacct
site_record                where the record of a site is: its database, or a backup of it
clusters                   simulated clusters: counted processors or machines
cluster_specs              clusters given on the command line
reservation_file           requests for reservations of a TOML file
cluster_file               clusters and shared licences of a TOML file
manager                    a simulated resource manager: a queue and a local policy
kept_windows               the reserved windows of a simulated manager
preemptive_manager         a manager that suspends and resumes jobs
schemes, planned           how jobs reach clusters: through the core, or submitted by users
reservations               requests for reservations, and what became of them
forecasts                  expected starts for policies that place jobs by them
lazy_head_plan             the plan of a queue's head, computed when it is first read
engine                     discrete events, and the core on top of the managers
metrics                    figures of a schedule
settings                   settings of the command line, and their checks
"""
