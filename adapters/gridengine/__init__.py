"""Grid Engine: submission by DRMAA, everything else by Grid Engine's commands.

adapter               a cell: submit, withdraw, poll, reserve
commands              running commands, as this account or as the owner of jobs
listing               jobs, queues and hosts, parsed from qstat, qhost and qconf
cluster_info          demand and capacity of the cell, from a listing
submission            a task as qsub options
withdrawals           deletion of jobs, and the log of deletions
accounting            the accounting file, read as it grows
reservations          advance reservations by qrsub and qrdel
reservation_listing   reservations and the occupancy of slots, parsed
"""
