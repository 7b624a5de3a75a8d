"""Replication: a slave's copies of log and tables, and registration at name servers."""
