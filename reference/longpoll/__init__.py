"""The command line and `verify`: the one place where law, broker and judge meet; no logic of its own."""
