"""The pages of the documentation: their blocks run, their links are valid, tables are current.

``blocks`` reads the fenced blocks of the pages, ``given`` has the objects that fragments of
programs presuppose, ``commands`` runs the lines of a shell.
"""
