"""Reads the text in a photograph with PP-OCR."""
