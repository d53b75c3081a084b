"""`python -m d2lpar` is the command `d2lpar`."""

from d2lpar.cli.main import main

if __name__ == "__main__":
    main()
