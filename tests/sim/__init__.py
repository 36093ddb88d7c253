"""A simulated world for the driver side of the product. A planted bug is planted before the product is imported."""

import os

if os.environ.get("GROUPKAFKA_PLANT"):
    import tests.sim.plants  # noqa: F401
