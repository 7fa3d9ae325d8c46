"""``python -m testnuc``: the command line."""

from testnuc.cli import main

main()
