"""What pyproject.toml cannot say: all packages below plugin/, and perf_tests/ as one of them."""

from setuptools import find_packages, setup

# perf_tests/ stays at the top level, where people look for it. Found, not listed: a forgotten room would be missing
# from the wheel alone, where no test of a checkout looks.
setup(packages=[*find_packages("plugin", include=["pytest_decodegate*"]), "pytest_decodegate.perf_tests"])
