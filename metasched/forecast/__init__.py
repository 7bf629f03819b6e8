"""Forecast: when each waiting task will start, as an interval. Pure; random draws take a seed.

run_times      distribution of run time over limit, learnt from ended jobs
snapshot       the initial state of a forward run
forward_run    one future: local policies started on the snapshot, with given run times
estimates      many futures; median and interval of each start
"""
