"""The policies: pure decisions, with no clock and no I/O, shared by daemon and simulator.

| name             | where, class               | source                 | makes best          |
|------------------|----------------------------|------------------------|---------------------|
| classification   | `classify.Classifier`      | Pasquali 2008, §3.1.1  | who comes first     |
| - deadline       | `classify.Deadline`        | Pasquali 2008, §3.1.1  | deadlines met       |
| - licence        | `classify.Licence`         | Pasquali 2008, §3.1.1  | use of licences     |
| - user           | `classify.User`            | Pasquali 2008, §3.1.1  | the site's promises |
| Load and Ordering| `dispatch.LoadOrdering`    | Pasquali 2008, §3.1.2  | balance of clusters |
"""
