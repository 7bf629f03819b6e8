"""Local policies: the order in which one cluster starts its queue. Pure.

queueing               the protocol, the common orders, EASY
conservative           Conservative Backfilling
flexible_backfilling   Flexible Backfilling
weights                the weights of Flexible Backfilling
registry               all of them by name
"""
