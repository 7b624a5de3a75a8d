"""Record the Java broker's own steps as a history: rules that log without stopping, and a load.

`tracing` has the rules, `load` sends and pulls, `steps` makes a history of both. Judging: `longpoll_judge`.
"""
