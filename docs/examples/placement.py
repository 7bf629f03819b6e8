"""Place five jobs on two clusters by Load and Ordering."""

from metasched.model import Job
from metasched.policies.dispatch import LoadOrdering

placement = LoadOrdering(["left", "right"], seed=1)
placement.observe("left", 0.0)  # seconds of work that the cluster owes
placement.observe("right", 1800.0)
for number in range(1, 6):
    job = Job(id=number, submitted=0.0, estimated=600.0)
    cluster = placement.choose(job, priority=5)
    placement.assigned(cluster, job, priority=5)
    print(f"job {number} -> {cluster}")
print("jobs of priority 5:", placement.count("left")[4], placement.count("right")[4])
