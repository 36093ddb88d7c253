"""Builds the optional extension; everything else is in pyproject.toml."""

from __future__ import annotations

import os
import shlex

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class BuildBesideSources(build_ext):
    """Give the extension to the sources, too: a program that runs in the checkout imports those."""

    def run(self) -> None:
        super().run()
        self.copy_extensions_to_source()


# Optional: without a C compiler the package installs all the same, and reads in pure Python. The limited API makes one
# build good for every Python from 3.10 on. GROUPKAFKA_CFLAGS is for scripts/sanitize.
setup(
    ext_modules=[
        Extension(
            "spark_groupsource.executor.clients._gather",
            ["spark_groupsource/executor/clients/_gather.c"],
            define_macros=[("Py_LIMITED_API", "0x030A0000")],
            extra_compile_args=["-std=c11", *shlex.split(os.environ.get("GROUPKAFKA_CFLAGS", ""))],
            extra_link_args=shlex.split(os.environ.get("GROUPKAFKA_CFLAGS", "")),
            depends=["spark_groupsource/executor/clients/_gather_parts.h"],
            py_limited_api=True,
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildBesideSources},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
