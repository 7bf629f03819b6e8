"""Published tables run again, and experiments of our own.

harness              what an experiment is: variants, seeds, results
catalogue            all experiments by name
pasquali2008         Load, Ordering, Flexible Backfilling (Pasquali 2008)
kurowski2011         reservations beside batch jobs (Kurowski et al. 2011)
reserved_providers   a provider with advance reservations
admission            late and early binding of reservations
federations          real traces as federations of clusters
federated            dispatching compared with what users do without it
comparison           policies side by side over seeds
plots, report        charts and a report of one page
"""
