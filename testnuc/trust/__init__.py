"""Vote selection and trust: auto policy, reviews, learning from judgments, prior correction."""
