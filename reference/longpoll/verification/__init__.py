"""The main job in stages: the law, the store, a served broker under load, the property suite, a real client, the judge.

Each stage gives rows for one page; none of them knows another. Leaves out every piece of work itself: the stages call
the law, the broker and the judge, and only say what came of it.
"""
