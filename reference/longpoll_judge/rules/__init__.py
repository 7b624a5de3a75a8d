"""Each line of the contract as code over columns."""
