"""Attacks and defects: accounts and clusters that are not involved must be served as before."""
