"""A language model with its published weights answers a question, natively and through nGraph."""
