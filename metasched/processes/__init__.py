"""Child processes: none outlives its parent, and each has a time limit.

child_processes   how a child ends with its parent
commands          commands of managers, run to their end
confinement       limits of a process that runs code of other packages
frames            messages between parent and child, each after its length
pickled_process   a process of metasched's own that answers requests
"""
