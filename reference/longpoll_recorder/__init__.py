"""Records a history of a broker's behaviour, from inside or from a proxy, in the specification's schema."""
