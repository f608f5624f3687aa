"""`python -m dtj_client` is `kubectl dtj`."""

from dtj_client.cli.commands import main

if __name__ == "__main__":
    main()
