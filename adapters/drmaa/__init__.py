"""DRMAA: Grid Engine and other systems with a DRMAA 1.0 library.

adapter      the adapter that chooses a profile for the library
generic      the profile for a system about which nothing else is known
session      one DRMAA session
job_script   the script that a DRMAA job runs
"""
