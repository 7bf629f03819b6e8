"""Simulations, published experiments, and the search for better policies; only `cli` imports it.

tuning        search for a better policy, tested on jobs that no trial has seen
experiments   published results, reproduced by simulation
simulate      simulated clusters on the same core: workloads, metrics
"""
