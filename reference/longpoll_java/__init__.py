"""Replays runs of the specification on the shipped Java broker: a counterexample becomes a schedule for its jars.

`longpoll_spec.render.java_breakpoints` maps each step to its location in each version. `byteman_rules` sets breakpoints
(gates) at these locations with Byteman, a Java agent, so the jars stay unmodified. `schedule` turns a run into
requests, and into the order in which threads leave breakpoints. `replay` executes the schedule on a running broker and
reports each step.
"""
