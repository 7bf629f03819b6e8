"""Convergent Scheduling: match queued jobs to machines by a matrix of preferences. Pure.

weights      constants of the heuristics
table        the queue as arrays: run times on machines, needs, deadlines
heuristics   the seven heuristics of the matrix, and the interface of further ones
knapsack     jobs that may hold scarce licences together
matching     greedy, optimal and incremental matching of jobs and machines
preferences  the sums of the heuristics, by row when they are needed
policies     the policies of a cluster, with preemption and without

Pasquali 2008, §3.2.2. It needs SciPy: pip install 'metasched[lab]'.
"""
