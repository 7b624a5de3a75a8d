"""The law: the state machine of broker long polling, written once as terms.

Leaves out everything that runs: no file, socket, clock or Spark session is opened here except by `engines`.
"""
