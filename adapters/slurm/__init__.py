"""Slurm, driven by its commands or by pyslurm.

adapter               the adapter: what every call does
access                the operations that both ways of access offer
commands              access by squeue, sbatch, scontrol, scancel
pyslurm_access        access by pyslurm
access_choice         which of the two serves a cluster
listing               jobs and nodes, parsed from the commands' text
submission            a submission as sbatch options and a batch script
listing_horizon       for how long a listing proves that a job is absent
accounting            queries of sacct and of jobcomp's file
accounting_records    their records, parsed
node_reservations     advance reservations of whole nodes
core_reservations     advance reservations of processors
reservation_listing   reservations and their nodes, parsed
"""
