"""Simulations, published experiments, and the search for better policies."""
