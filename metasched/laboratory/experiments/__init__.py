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
federation_file      a federation of a site's own, from a TOML file
federations          federations of clusters from real traces
federated            dispatch by metasched compared with users who choose clusters
estimates            estimated starts compared with true starts
binomial_bounds      bounds of a wait from past waits, for comparison
comparison           policies side by side over seeds
plots, report        charts, and a report page
trade_offs           two figures of stored results against each other, drawn
html_page            parts of such a page
"""
