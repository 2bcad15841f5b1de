"""Run the command line with ``python -m rankfall``."""

from rankfall.cli import main

if __name__ == "__main__":
    main()
