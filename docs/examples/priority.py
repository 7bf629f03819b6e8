"""Compute the priority of two jobs: one has a deadline and needs a licence."""

from metasched.model import Job
from metasched.policies.classify import Classifier, Deadline, Licence, User

classifier = Classifier(
    max_priority=10,
    heuristics=[Deadline(window=100), Licence(total=20), User(classes={"gold": 7, "regular": 1})],
)
plain = Job(id=1, submitted=0.0, estimated=3600.0)
urgent = Job(
    id=2,
    submitted=0.0,
    estimated=3600.0,
    deadline=4000.0,
    licences={"matlab": 1},
    user_class="gold",
)
for job in (plain, urgent):
    print(f"job {job.id}: priority {classifier.priority(job)}")
