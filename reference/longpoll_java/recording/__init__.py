"""Record the Java broker's own steps as a history: rules that log without stopping, and a load.

`trace_rules` has the rules, `load` sends and pulls, `history` makes a history of both. Judging: `longpoll_judge`.
"""
