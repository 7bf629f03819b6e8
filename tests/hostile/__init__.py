"""Attacks: whatever an account, cluster, client or defect does, all others are served."""
