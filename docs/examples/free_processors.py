"""Find a window for a reservation among running jobs."""

from metasched.carts import Carts

carts = Carts(capacity=16)
carts.reserve(start=0, end=100, size=12)  # a running job until its limit
carts.reserve(start=50, end=200, size=4)  # a reservation

print("free now:", carts.free(0, 50))
print("8 processors for 60 s, first start:", carts.earliest_start(size=8, duration=60, ready=0))
print("intervals of possible starts:", carts.starts(size=8, duration=60, ready=0, deadline=300))
try:
    carts.reserve(start=0, end=100, size=8)
except ValueError as error:
    print("refused:", error)
