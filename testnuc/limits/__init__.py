"""Rate limits, budgets and usage."""
