"""Heuristics of the site in a process of their own: the daemon waits for them a bounded time.

Only who may write to the environment of the daemon can install a plug-in, and it runs as the
account of the daemon. So it is trusted not to attack, but not to work: it may hang, raise, take all
memory, print, fork or end its process. Of this the daemon sees an exclusion. Which values count is
in `policies.plug_in_ratings`.

messages   the frames between daemon and process
process    the process: lowers its limits, loads plug-ins, answers
host       the daemon's side: starts, asks, suspends
testing    checks for authors of plug-ins
"""
