"""The judge's page: what of a record it draws, where each thing lies, and the text around it."""
