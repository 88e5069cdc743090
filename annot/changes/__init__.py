"""Changes that `annot try` applies to a program: when each fits, its code, and what it does to numbers."""
