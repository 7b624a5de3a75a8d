"""Administration: the requests of `mqadmin`, and of clients that join and leave groups and commit offsets."""
