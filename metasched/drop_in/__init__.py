"""Commands with the names, options and words of Slurm's, for users' scripts and workflow tools.

A host's own interpreter runs them: Python 3.9 or newer, without site-packages. Tools call them in
loops, so a command imports only what it needs.

command       start of a command: its options, the daemon, errors, exit codes
command_line  a command line, read as by getopt_long(3)
job           a task of metasched in Slurm's words: state, reason, times, counts
job_fields    the fields of `squeue --format` and `--Format`
format_language    the language of these formats
sbatch_options    the options of sbatch: a single table, also for the documents
sbatch_script     its script and `#SBATCH` lines
sbatch_values     its values as fields of a request
slurm_time        times and durations as Slurm's options write them
sacct, sbatch, scancel, scontrol, sinfo, squeue    the commands
native_clusters    the real commands of the clusters, and which ids are their own
native_listing, native_queue, native_records    jobs that metasched did not send
job_context   the job in which a command runs
srun, sbcast  inside a job: the real commands, with the manager's id
srun_options  the options of srun and salloc
placement, salloc    outside of a job: the real commands, on a cluster that the daemon chooses
sattach, seff, sprio, sshare, sstat, sacctmgr    the real commands, on the cluster of a job
job_tools     what these have in common
"""
