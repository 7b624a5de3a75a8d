"""The message store on a simulated disk (`store`), and a model of what it must contain (`model`)."""
