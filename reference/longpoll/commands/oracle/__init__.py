"""`longpoll oracle`: checks the steps of a program in any language, sent as lines of JSON."""
