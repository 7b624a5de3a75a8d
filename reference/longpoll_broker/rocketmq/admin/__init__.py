"""Administration: the requests of `mqadmin`, and of clients that join, commit and leave."""
