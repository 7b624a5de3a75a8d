"""`longpoll oracle`: the law beside the tests of a program in any language, over lines of JSON."""
