"""Licence servers: the sources of licence counts.

A server is queried in a process of its own (`LicenceServer.query`); its answer is parsed without
side effects (`LicenceServer.parse`) into a `UsageReport`. `matching` subtracts the use by jobs of
metasched, so that no token counts twice. Read `base.py` first, then `flexlm.py`.

base       the contract, and the registry of licence servers
command    any command that prints JSON
flexlm     FlexLM (FlexNet Publisher)
matching   finds the uses that belong to jobs of metasched
process    runs a query in a process
"""
