"""Pages: reports as one HTML file each, which loads nothing."""
