"""The daemon: what connects the pure core to the world.

service               the scheduler service: events, commits, actions
reservation_sync      tells a cluster's manager about reservations
licence_monitor       queries licence servers at intervals
manager_start_times   when managers expect pending tasks to start
mail                  mail to owners of broken reservations
circuit_breaker       pauses calls to what does not answer
doctor                finds problems of the installation
"""
