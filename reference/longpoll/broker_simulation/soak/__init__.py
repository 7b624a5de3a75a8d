"""Runs the load of simulated runs against a real broker process on real sockets and disks, and kills it."""
