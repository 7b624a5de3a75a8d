"""The message store on a simulated disk: driven from seeds (`store`), beside a list of what it must have (`model`).

Leaves out the broker around it, and threads.
"""
