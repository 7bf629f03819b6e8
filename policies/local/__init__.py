"""Local policies: which queued jobs of a cluster start now. Pure.

queueing               the interface of a policy: its input and output
capacity               free resources during a pass, the reservation of the blocked head
backfilling            passes over a queue: strict order, first fit, EASY
orders                 policies that sort the queue
conservative           conservative backfilling
flexible_backfilling   Flexible Backfilling
weights                constants of Flexible Backfilling
registry               all policies by name

| name         | class                           | source                | optimises               |
|--------------|---------------------------------|-----------------------|-------------------------|
| fcfs         | `orders.FCFS`                   | -                     | fairness                |
| first-fit    | `orders.FirstFit`               | Kurowski 2011, §4.4.3 | use of processors       |
| lsf          | `orders.LSF`                    | Kurowski 2011, §4.4.3 | large jobs              |
| sjf          | `orders.SJF`                    | -                     | mean wait               |
| edf          | `orders.EDF`                    | Pasquali 2008, §4.2   | deadlines met           |
| easy         | `orders.EASY`                   | Lifka 1995            | use of processors       |
| conservative | `conservative.Conservative`     | Mu'alem 2001, §2.2    | starts known in advance |
| priority     | `orders.Priority`               | Pasquali 2008, §4.3   | priorities of metasched |
| fair-share   | `orders.FairShare`              | -                     | equal shares of users   |
| fb-mod       | `FlexibleBackfilling`           | Pasquali 2008, §3.2.1 | deadlines, licences     |
| fb-unmod     | `UnmodifiedFlexibleBackfilling` | Pasquali 2008, §3.2.1 | deadlines, licences     |
"""
