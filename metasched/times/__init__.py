"""Clocks, deadlines of calls, and times that recur."""
