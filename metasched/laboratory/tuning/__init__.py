"""Search for a better policy: trials on a site's jobs, tested on jobs that no trial has seen.

inputs          jobs, clusters and present policy; their training part and held-out part
objectives      figures to lower, each a mean over jobs; when a trial dominates another
search_space    which keys of a policy are tried, with which values
trials          simulations of a policy, in processes of their own
study           the trials of a study in order, kept in an SQL database by Optuna
held_out        whether a gain is real: intervals of paired differences
outcome         the trade-offs that were found, and the policy that is written
tuned_policy    that policy as a file with its provenance
plot            trials, trade-offs, the present and the chosen policy, drawn
"""
