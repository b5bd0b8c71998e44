"""Old-style programs (ProgramDesc) as PIR programs, where nothing gets lost."""
