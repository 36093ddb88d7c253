"""`python -m spark_groupsource`: see `spark_groupsource/cli/main.py`."""

import sys

from spark_groupsource.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
