"""Where the counts of licences come from: one probe for each licence server.

A probe asks (`LicenceServer.ask`, in a process of its own) and reads (`LicenceServer.read`, pure);
what it has read is a `Report`. `matching` takes our own use out of it, so that nothing counts
twice. Read `base.py`, then `flexlm.py`.
"""
