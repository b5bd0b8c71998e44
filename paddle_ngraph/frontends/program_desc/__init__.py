"""Translation of ProgramDesc programs to PIR programs, where no information is lost."""
