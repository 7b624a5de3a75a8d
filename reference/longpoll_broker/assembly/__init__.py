"""How the services of a broker are made and put together, one module a room of `service`.

Each service says itself which codes it serves and what it needs; here stand the order and the choice: which of them
there are under a policy and a configuration, and whether the quicker ones of `fast` take their places.
"""
