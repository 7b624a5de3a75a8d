"""A slave: it copies its master's log and tables, and tells name servers where it is."""
