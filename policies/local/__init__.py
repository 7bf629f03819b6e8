"""Local policies: which queued jobs of a cluster start now. Pure.

queueing               the interface of a policy: its input and output
reserved_windows       windows that a manager keeps, and the jobs in them
capacity               free resources during a pass, the reservation of the blocked head
backfilling            passes over a queue: strict order, first fit, EASY
orders                 policies that sort the queue
preemption             the interface of policies that suspend running jobs
preemptive_orders      preemptive policies that sort the queue
availability           free processors over time
conservative           conservative backfilling
plan                   a plan of the whole queue
insertion              EG-EDF: an arriving job in a plan
plan_search            Tabu Search and RCBO
planning               policies that keep a plan
flexible_backfilling   Flexible Backfilling
weights                constants of Flexible Backfilling
convergent             Convergent Scheduling: a matching of jobs and machines
exclusion              policies of other packages that fail
registry               all policies by name

| name         | class                           | source                | optimises               |
|--------------|---------------------------------|-----------------------|-------------------------|
| fcfs         | `orders.FCFS`                   | -                     | fairness                |
| first-fit    | `orders.FirstFit`               | Kurowski 2011, §4.4.3 | use of processors       |
| lsf          | `orders.LSF`                    | Kurowski 2011, §4.4.3 | large jobs              |
| sjf          | `orders.SJF`                    | -                     | mean wait               |
| edf          | `orders.EDF`                    | Pasquali 2008, §4.2   | deadlines met           |
| sjf-bounded  | `orders.BoundedSJF`             | PBS, `max_starve`     | mean wait, longest wait |
| edf-bounded  | `orders.BoundedEDF`             | PBS, `max_starve`     | deadlines, longest wait |
| easy         | `orders.EASY`                   | Lifka 1995            | use of processors       |
| conservative | `conservative.Conservative`     | Mu'alem 2001, §2.2    | starts known in advance |
| eg-edf       | `planning.EarliestGap`          | Pasquali 2008, §5.2.1 | deadlines, makespan     |
| tabu         | `planning.TabuPlan`             | Pasquali 2008, §5.2.2 | deadlines, makespan     |
| rcbo         | `planning.OptimisedPlan`        | Du 2010, §4           | deadlines, makespan     |
| priority     | `orders.Priority`               | Pasquali 2008, §4.3   | priorities of metasched |
| fair-share   | `orders.FairShare`              | -                     | equal shares of users   |
| fb-mod       | `FlexibleBackfilling`           | Pasquali 2008, §3.2.1 | deadlines, licences     |
| fb-unmod     | `UnmodifiedFlexibleBackfilling` | Pasquali 2008, §3.2.1 | deadlines, licences     |
| cs-ni-np     | `OptimalConvergent`             | Pasquali 2008, §3.2.2 | deadlines, licences     |
| cs-i-np      | `IncrementalConvergent`         | Pasquali 2008, §3.2.2 | the same, repaired      |
| cs-greedy-np | `GreedyConvergent`              | Pasquali 2008, §3.2.2 | the same, greedy        |

With preemption, in simulations only: `cs-ni-p`, `cs-i-p` (`convergent.policies`), `priority-p`,
`edf-p`, `sjf-p`, `lsf-p` (`preemptive_orders`).
"""
