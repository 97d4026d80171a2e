"""The job store: jobs, attempts, queue, keys, data sets, audit log, counters, leases."""
