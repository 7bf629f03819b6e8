"""DRMAA: Grid Engine and other systems with a DRMAA 1.0 library.

generic      the profile that relies on DRMAA alone
session      the DRMAA session of a process, with translated errors
job_script   the shell script that a DRMAA job runs
"""
