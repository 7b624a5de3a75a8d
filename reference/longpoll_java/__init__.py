"""Runs of the specification on the shipped Java broker: a counterexample becomes a schedule for unmodified jars.

`longpoll_spec.render.java_breakpoints` maps each step to its location in each version. `byteman_rules` turns these
locations into gates with Byteman, a Java agent. `schedule` turns a run into requests and the order in which threads
leave gates. `replay` executes it on a running broker and reports what happened.
"""
