"""The serialized subgraph: the contract between Python and C++."""
