"""`python -m spark_groupsource.embedded`: run a broker until standard input ends (see `broker.main`)."""

import sys

from spark_groupsource.embedded.broker import main

if __name__ == "__main__":
    sys.exit(main())
