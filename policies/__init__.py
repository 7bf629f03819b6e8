"""The policies: pure decisions, with no clock and no I/O, shared by daemon and simulator.

| name              | where                    | source                | makes best              |
|-------------------|--------------------------|-----------------------|-------------------------|
| classification    | `classify.Classifier`    | Pasquali 2008, §3.1.1 | urgent jobs come first  |
| - deadline        | `classify.Deadline`      | Pasquali 2008, §3.1.1 | deadlines met           |
| - licence         | `classify.Licence`       | Pasquali 2008, §3.1.1 | licences given back     |
| - user            | `classify.User`          | Pasquali 2008, §3.1.1 | promises to users       |
| - of a site's own | `heuristic.Heuristic`    | -                     | what the site likes     |
| eligibility       | `eligible.unfit`         | ours                  | no job sent in vain     |
| Load and Ordering | `dispatch.LoadOrdering`  | Pasquali 2008, §3.1.2 | balance of clusters     |
| pull              | `pulling.Room`           | ours                  | waits of pending jobs   |
| late sending      | `late.LateSending`       | Lifka 1995            | waits, promises kept    |

Local policies, by the names of `named.make`:

| name         | where                     | source                | makes best              |
|--------------|---------------------------|-----------------------|-------------------------|
| fcfs         | `queueing.FCFS`           | -                     | fairness                |
| first-fit    | `queueing.FirstFit`       | Kurowski 2011, §4.4.3 | use of processors       |
| lsf          | `queueing.LSF`            | Kurowski 2011, §4.4.3 | large jobs              |
| sjf          | `queueing.SJF`            | -                     | mean wait               |
| edf          | `queueing.EDF`            | Pasquali 2008, §4.2   | deadlines met           |
| easy         | `queueing.EASY`           | Lifka 1995            | use of processors       |
| conservative | `planning.Conservative`   | Mu'alem 2001, §2.2    | starts known beforehand |
| priority     | `queueing.Priority`       | Pasquali 2008, §4.3   | the meta-scheduler's    |
| fair-share   | `queueing.FairShare`      | -                     | equal shares of users   |
| fb-mod       | `flexible.FlexibleBackfilling` | Pasquali 2008, §3.2.1 | deadlines, licences |
| fb-unmod     | `flexible.KeptReservation` | Pasquali 2008, §3.2.1 | deadlines, licences    |
"""
