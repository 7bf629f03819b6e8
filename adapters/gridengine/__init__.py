"""Grid Engine: submission by DRMAA, everything else by its commands.

adapter               the adapter: what every call does
listing               jobs, queues and hosts, parsed from qstat and qhost
submission            a submission as qsub options
accounting            the accounting file, parsed
reservations          advance reservations by qrsub and qrdel
reservation_listing   reservations and their slots, parsed
"""
