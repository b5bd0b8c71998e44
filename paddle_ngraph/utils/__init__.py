"""What every stage may use: tables, locks, signals, dtypes, the clock."""
