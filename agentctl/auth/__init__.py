"""Authorization: principals, scopes, the policy, grants, sign-in and signed statements.

`tokens` verifies and mints tokens, `keys` has the keys, `explain` explains a decision. Which data a
principal sees is a condition of SQL in `store`.
"""
