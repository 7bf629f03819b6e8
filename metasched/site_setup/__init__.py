"""`metasched init site`: finds out and writes, as root, the files of a host that runs a site.

choices          what an admin decides: clusters, account, database, paths
discovery        finds slurm.conf files and Grid Engine cells
configuration    texts of metasched.toml and launcher.toml
site_files       all files of a site, with their texts and modes
root_files       writes files as root: no link is followed, nothing of the admin is overwritten
templates/       units of systemd, accounts (sysusers.d) and folders (tmpfiles.d)
"""
