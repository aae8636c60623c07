# SPDX-License-Identifier: Apache-2.0
"""One contract, every implementation: each package says in its module here how its stores and services are made.

A module `tests/promises/contract/<package>.py` lists the offers of the package:

- `COMPACTIONS`: drivers, as `compactlib.testing.Driver`;
- `SERVICES`: instances of `services.ServiceFactory`;
- `POLICIES`: pairs of a policy and its views as for `check_policy`.

A package leaves out other offers. `test_contract.py` runs every kit over every list; the tests of one package
are `pytest tests/promises/contract -k <package>`.
"""
