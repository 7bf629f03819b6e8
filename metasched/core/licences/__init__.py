"""Floating licences as tokens: who gets them, in what order.

queue     the queue of tasks that wait for tokens
windows   tokens that advance reservations keep
"""
