"""`python -m lmtime.cli`: the command where no script was installed."""

from lmtime.cli import main

main()
