"""Clocks, deadlines of calls, and times that recur.

clock          moments of the wall clock and of the boot clock
timeouts       time limits of asyncio calls
recurrence     times that recur, in time zones
active_until   until when a daemon is certainly the only active one
"""
