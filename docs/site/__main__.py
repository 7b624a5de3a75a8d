"""`python -m docs.site`: see `build`."""

from docs.site.build import main

main()
