"""Which question is asked when, and that none is asked twice."""
