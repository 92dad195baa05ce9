"""The gate: the conditions on which work may begin or continue.

Those are halts, which operators and breakers make, and budgets. The rooms after this one ask
`gate/gate.py`.
"""
