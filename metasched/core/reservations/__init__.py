"""Advance reservations in the core.

book           all reservations: offered, bound, moved, broken
availability   free processors of one cluster over time
"""
