"""What a history says about its own evidence: where it begins and ends, and where it has holes."""
