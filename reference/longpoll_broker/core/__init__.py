"""Pure decisions: what to answer a pull, whom to wake, who is late. No thread, clock, socket or file.

Time and the store come in by argument; the store and the outside are seen through Protocols declared here.
"""
