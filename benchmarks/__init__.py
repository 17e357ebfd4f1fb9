"""Measurements of speed and memory; each is run by hand, none is a test."""
