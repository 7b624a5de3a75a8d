"""Records a history of what a broker does, or of what a proxy sees of one, in the schema of the spec."""
