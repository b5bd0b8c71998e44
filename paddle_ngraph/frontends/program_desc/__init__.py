"""Frontend of ProgramDesc programs: translates them to PIR where nothing is lost."""
