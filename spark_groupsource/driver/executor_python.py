"""The Python that executors start: reports one error with the cure when it lacks this package.

Spark takes the path from the driver's environment (PYSPARK_DRIVER_PYTHON, else PYSPARK_PYTHON) and starts it on every
executor. An executor without the package fails while it unpickles what it shall run, where no code of this package can
run. So what travels brings the check along: a function that is pickled by value, not by its name.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from spark_groupsource import errors
from spark_groupsource.errors import ReadError

# pyarrow is not in what travels: PySpark itself needs it earlier.
_PACKAGES = ("pyarrow", "spark_groupsource", "confluent_kafka")
_MISSING = re.compile(rf"ModuleNotFoundError: No module named '({'|'.join(_PACKAGES)})['.]")


def package_missing(package: str, python: str = "") -> ReadError:
    """Return the error of an executor whose Python lacks a package."""
    return ReadError(errors.EXECUTOR_PACKAGE_MISSING, package=package, python=f" ({python})" if python else "")


def missing_in(text: str) -> ReadError | None:
    """Return the error that a query's failure means, if an executor's Python lacks a package; else None."""
    found = _MISSING.search(text)
    return package_missing(found.group(1)) if found else None


def misleading_variables(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return a warning when the driver's variables start another Python on executors than they seem to; else None.

    Spark's recipe for archives sets both variables: a relative path for the executors, another one for the driver.
    """
    driver, both = environment.get("PYSPARK_DRIVER_PYTHON", ""), environment.get("PYSPARK_PYTHON", "")
    if not driver or driver == both or not both.startswith("./"):
        return None
    return f"executors start '{driver}' (PYSPARK_DRIVER_PYTHON), not '{both}' (PYSPARK_PYTHON): unset the former"


def guarded(restore: Callable[..., object], *arguments: object) -> tuple[Callable[..., object], tuple[object, ...]]:
    """Return what `__reduce__` returns, for `restore(*arguments)` in a Python that may lack this package.

    Needs PySpark's pickler: the standard one takes functions by their names only. Unpickling raises
    `ModuleNotFoundError` with the catalogue's text.
    """
    packages = {name: str(package_missing(name, "PYTHON")) for name in _PACKAGES[1:]}
    return _by_value(_restore), (packages, pickle.dumps((restore, arguments)))


def _restore(errors_by_package: dict[str, str], payload: bytes) -> Any:
    """Unpickle where this package may be missing. It uses no global names, because it travels without them."""
    import importlib.util  # noqa: PLC0415
    import pickle  # noqa: PLC0415
    import sys  # noqa: PLC0415

    for name, text in errors_by_package.items():
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(text.replace("PYTHON", sys.executable, 1), name=name)
    restore, arguments = pickle.loads(payload)  # noqa: S301 - made by `guarded` in the same application
    return restore(*arguments)


def _by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that PySpark's pickler takes by value: it does so with those of the main program."""
    code = getattr(function, "__code__")  # noqa: B009
    return FunctionType(code, {"__name__": "__main__"}, function.__name__)
