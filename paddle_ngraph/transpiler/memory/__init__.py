"""The analyses and schedules by which the memory transpiler reduces the peak."""
