"""`python -m polycert`."""

from polycert.cli import main

if __name__ == "__main__":
    main()
