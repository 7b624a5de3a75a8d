"""Runs of the law on the shipped Java broker: a counterexample becomes a schedule that unchanged jars follow.

`longpoll_spec.render.java_breakpoints` says where each of the law's steps lies in each version. `byteman_rules` makes
these places gates by Byteman (a Java agent for exactly this), `schedule` turns a run into what is sent and which thread
goes on from which gate, and `replay` does that to a running broker and tells what was seen.
"""
