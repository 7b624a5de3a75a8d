"""`python -m longpoll` is `longpoll`."""

from longpoll.entry import main

main()
