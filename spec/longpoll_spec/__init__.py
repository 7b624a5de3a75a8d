"""The specification: a state machine of broker long polling, written once as terms.

The state machine uses no files, sockets, clocks or Spark sessions; only `engines` uses these, and `custom` reads files.
"""
