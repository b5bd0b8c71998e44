"""Networks of public packages, run natively and through the engine in every way they are used.

``make zoo SHARE=1/8`` runs an eighth of them, in an environment of their own, and writes
``docs/development/zoo.md``. ``tests/models`` has static programs of this project's own networks.
"""
