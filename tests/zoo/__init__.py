"""Networks of other people's libraries, and what a user does with a converted one, step by step.

`networks` builds them with random weights, `steps` holds the steps. `make test-zoo` runs every step with every network
and writes the table of docs/networks-tried.md; `test_zoo` runs some of both. Nothing here is a part of the package.
"""
