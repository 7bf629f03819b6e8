"""The client side: standard library and msgspec at most, so that commands start quickly.

client        finds the daemon and talks to it
credentials   tokens and MUNGE credentials
job_request   a job as a user requests it: options, directives, script
options       the options of `submit`, each with its spellings
"""
