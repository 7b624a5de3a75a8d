"""The Java broker's own steps as a history: rules that write and do not wait, a load, and what they say as steps.

`trace_rules` has the rules, `load` sends and pulls, `history` makes a history of steps of both. Leaves out judging it
(`longpoll_judge`).
"""
