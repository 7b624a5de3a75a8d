"""The specification: a state machine of broker long polling, written once as terms.

Nothing here opens a file, socket, clock or Spark session, except `engines`.
"""
