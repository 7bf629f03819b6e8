"""The policies: pure decisions, with no clock and no I/O, shared by daemon and simulator.

| name              | where                    | source                | makes best              |
|-------------------|--------------------------|-----------------------|-------------------------|
| classification    | `classify.Classifier`    | Pasquali 2008, §3.1.1 | urgent jobs come first  |
| - deadline        | `classify.Deadline`      | Pasquali 2008, §3.1.1 | deadlines met           |
| - licence         | `classify.Licence`       | Pasquali 2008, §3.1.1 | licences given back     |
| - user            | `classify.User`          | Pasquali 2008, §3.1.1 | promises to users       |
| eligibility       | `eligible.unfit`         | ours                  | no job sent in vain     |
| Load and Ordering | `dispatch.LoadOrdering`  | Pasquali 2008, §3.1.2 | balance of clusters     |
| pull              | `pulling.Room`           | ours                  | waits of pending jobs   |
| fcfs              | `queueing.FCFS`          | -                     | fairness                |
| easy              | `queueing.EASY`          | Lifka 1995            | use of processors       |
"""
