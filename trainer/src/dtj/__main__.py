"""`python -m dtj` is `dtj`."""

from dtj.cli import main

if __name__ == "__main__":
    main()
