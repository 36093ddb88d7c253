"""Check the Python that executors start: report one error if it lacks this package, or has another version of it.

Spark takes the path from the driver's environment (PYSPARK_DRIVER_PYTHON, else PYSPARK_PYTHON) and starts it on every
executor. An executor without the package fails while it unpickles its task, where no code of this package can run. So
the pickled data contains the check: a function that is pickled by value, not by its name.

Another version may unpickle without an error, and read with wrong options: dataclasses with slots unpickle their values
by the order of the fields.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from spark_groupsource import errors
from spark_groupsource._version import __version__
from spark_groupsource.errors import ReadError

# The pickled check leaves out pyarrow: PySpark itself needs it earlier.
_PACKAGES = ("pyarrow", "spark_groupsource", "confluent_kafka")
_MISSING = re.compile(rf"ModuleNotFoundError: No module named '({'|'.join(_PACKAGES)})['.]")


def package_missing(package: str, python: str = "") -> ReadError:
    """Return the error for an executor whose Python lacks a package."""
    return ReadError(errors.EXECUTOR_PACKAGE_MISSING, package=package, python=f" ({python})" if python else "")


def missing_in(text: str) -> ReadError | None:
    """Return the error for the text of a query's failure if an executor's Python lacks a package; else None."""
    found = _MISSING.search(text)
    return package_missing(found.group(1)) if found else None


def misleading_variables(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return a warning if the driver's variables start another Python on executors than they seem to; else None.

    Spark's recipe for archives sets both variables: a relative path for the executors, another one for the driver.
    """
    driver, both = environment.get("PYSPARK_DRIVER_PYTHON", ""), environment.get("PYSPARK_PYTHON", "")
    if not driver or driver == both or not both.startswith("./"):
        return None
    return f"executors start '{driver}' (PYSPARK_DRIVER_PYTHON), not '{both}' (PYSPARK_PYTHON): unset the former"


def guarded(restore: Callable[..., object], *arguments: object) -> tuple[Callable[..., object], tuple[object, ...]]:
    """Return what `__reduce__` returns, for `restore(*arguments)` in a Python that may lack this package.

    Requires PySpark's pickler: the standard one pickles functions by name only. If a package is missing, unpickling
    raises `ModuleNotFoundError` with the catalogue's text; if this package has another version, `ImportError`.
    """
    packages = {name: str(package_missing(name, "PYTHON")) for name in _PACKAGES[1:]}
    differs = ReadError(errors.EXECUTOR_VERSION_DIFFERS, python="PYTHON", there="THERE", here=__version__)
    return _by_value(_restore), (packages, __version__, str(differs), pickle.dumps((restore, arguments)))


def _restore(errors_by_package: dict[str, str], version: str, differs: str, payload: bytes) -> Any:
    """Unpickle where this package may be missing. Uses no global names, because it is pickled without them."""
    import importlib.util  # noqa: PLC0415
    import pickle  # noqa: PLC0415
    import sys  # noqa: PLC0415

    for name, text in errors_by_package.items():
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(text.replace("PYTHON", sys.executable, 1), name=name)
    from spark_groupsource._version import __version__ as there  # noqa: PLC0415

    if there != version:
        raise ImportError(differs.replace("PYTHON", sys.executable, 1).replace("THERE", there, 1))
    restore, arguments = pickle.loads(payload)  # noqa: S301 - made by `guarded` in the same application
    return restore(*arguments)


def _by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of the function that PySpark's pickler pickles by value, as it does with those of `__main__`."""
    code = getattr(function, "__code__")  # noqa: B009
    return FunctionType(code, {"__name__": "__main__"}, function.__name__)
