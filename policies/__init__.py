"""Scheduling policies: pure decisions without clock or I/O, shared by daemon and simulator.

| policy            | where                    | source                | optimises                |
|-------------------|--------------------------|-----------------------|--------------------------|
| classification    | `classify.Classifier`    | Pasquali 2008, §3.1.1 | starts of urgent jobs    |
| - deadline        | `classify.Deadline`      | Pasquali 2008, §3.1.1 | deadlines met            |
| - licence         | `classify.Licence`       | Pasquali 2008, §3.1.1 | early return of licences |
| - user            | `classify.User`          | Pasquali 2008, §3.1.1 | service of user classes  |
| - self-optimising | `self_optimising`        | Pasquali 2008, §5.1   | shares of priorities     |
| - of a site       | `plug_in_ratings`        | -                     | goals of the site        |
| eligibility       | `eligible`, `exclusions` | metasched             | no futile dispatches     |
| Load and Ordering | `dispatch.LoadOrdering`  | Pasquali 2008, §3.1.2 | balance of clusters      |
| - rated clusters  | `placement_ratings`      | -                     | goals of the site        |
| pull              | `pull.BackfillCapacity`  | metasched             | waits of pending jobs    |
| late binding      | `late_binding`          | Lifka 1995            | waits                    |
| candidate         | `shadow.Candidate`       | metasched             | nothing: it is compared  |
| reservations      | `reservation_choice`     | Kurowski 2011, §4.4.2 | early completion         |

`heuristic` has the interfaces of heuristics that a site adds as plug-ins.
`policy.Policy` holds the parameters of a site; `local` has the policies of single clusters.
"""
