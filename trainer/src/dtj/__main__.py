"""`python -m dtj` is `dtj`."""

from dtj.cli.commands import main

if __name__ == "__main__":
    main()
