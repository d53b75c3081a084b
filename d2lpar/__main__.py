"""`python -m d2lpar` is `d2lpar`."""

from d2lpar.cli.main import main

main()
