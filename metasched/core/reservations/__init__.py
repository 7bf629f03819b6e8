"""Advance reservations in the core. Pure.

book                all reservations; applies events and their consequences
owner_requests      requests and cancellations
manager_answers     answers to bind and unbind
survey_reconciler   surveys against the book
timer               windows that begin and end
binding             nodes chosen late, or again after rejections and failures
job_access          what placement may do in and beside reservations
consequences        new versions, actions and warnings as data
offers              possible windows for a request
node_choice         computes nodes for late binding, after rejections and failures
index               reservations by cluster, and by the times at which they are due
free_capacity       free capacity of a cluster between two surveys
availability        free capacity of each cluster over time
events              events, actions and results
"""
