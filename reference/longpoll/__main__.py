"""`python -m longpoll` is `longpoll`."""

from longpoll.cli import main

main()
