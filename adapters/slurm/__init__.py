"""Slurm, driven by its commands or by pyslurm.

adapter               the adapter: submissions, withdrawals, listings
access                the operations that both ways of access offer
commands              access by squeue, sbatch, scontrol, scancel
pyslurm_access        access by pyslurm
access_choice         the choice between the two for a cluster
listing               jobs, nodes and the controller, parsed from the commands' output
cluster_info          partitions, free nodes and queue of a cluster, from its listing
submission            a submission as sbatch options and a batch script
listing_horizon       the time span for which a listing proves that a job is absent
accounting            queries of sacct and of the file of jobcomp/filetxt
accounting_records    records of accounting, parsed
node_reservations     advance reservations of whole nodes
processor_reservations     advance reservations of processors
reservation_listing   reservations and their nodes, parsed
"""
