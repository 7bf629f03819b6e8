"""Experiments: published tables reproduced, and comparisons of metasched with other schemes.

harness              cases, seeds, results
catalogue            all experiments by name, and their execution
formulas             preset, formulas and constants of the policies of an experiment
finished_runs        runs of an interrupted experiment
pasquali2008         Load and Ordering, Flexible Backfilling; also two tables of Kurowski et al.
pass_times           time of a pass of Convergent Scheduling beside a longer queue
kurowski2011         reservations beside batch jobs
reserved_providers   providers with advance reservations, through the daemon's core
static_binding       managers that name the processors of a window at its request
reserving_jobs       a share of the jobs reserves, through the daemon's core
admission            reservations accepted or rejected, by the time of processor binding
local_policies       local policies on real traces with drawn deadlines, classes and licences
plans                policies with a plan of the whole queue
knapsacks            the greedy knapsack of Convergent Scheduling against an exact one
self_optimising      streams of margins, classified in five priorities
self_optimised_traces  self-optimised priorities on real traces
federation_file      a federation of a site's own, from a TOML file
federations          federations of clusters from real traces
federated            dispatch by metasched compared with users who choose clusters
estimates            estimated starts compared with true starts
binomial_bounds      bounds of a wait from past waits, for comparison
comparison           policies side by side over seeds
policy_trial         a recorded period under two policies; policy_trial_page shows it
parallel_work        pieces of work in processes of their own
plots, report        charts, and a report page
trade_offs           two figures of stored results against each other, drawn
html_page            parts of such a page
"""
