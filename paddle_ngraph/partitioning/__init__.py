"""Graph partitioning: replaces convertible subgraphs of a program with engine operators."""
