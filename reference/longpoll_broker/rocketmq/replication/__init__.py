"""Master and slave: the log and the tables that a slave copies, and registration at name servers."""
