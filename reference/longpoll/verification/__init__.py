"""The stages of `longpoll verify`: specification, store, load, property suite, real client and judge.

The stages are independent; each returns rows for one report. They call the specification, the broker and the judge.
"""
