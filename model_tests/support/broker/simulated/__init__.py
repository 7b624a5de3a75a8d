"""The message store on a simulated disk: driven by seeds (`store`), compared with a model (`model`).

Leaves out the broker around it, and threads.
"""
