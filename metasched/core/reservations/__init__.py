"""Advance reservations in the core. Pure.

book           all reservations and their changes of state
offers         possible windows for a request
node_choice    nodes for late binding, after rejections and failures
availability   free capacity of each cluster over time
events         events, actions and results
"""
