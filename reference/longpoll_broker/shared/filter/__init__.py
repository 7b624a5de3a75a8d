"""Which messages a subscription takes: tags by their hash, SQL92 on properties."""
