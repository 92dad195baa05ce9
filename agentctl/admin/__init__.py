"""The programs of an administrator: doctor, repairs, copies, imports, restores, upgrades.

The command line calls them, on the databases and the service. Operations, which servers have too,
are in `service`.
"""
