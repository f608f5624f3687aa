"""`python -m dtj` is `dtj`."""

from dtj.entry import main

if __name__ == "__main__":
    main()
