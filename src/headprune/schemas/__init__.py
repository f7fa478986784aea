"""The JSON Schemas of the files that headprune writes, as package data."""
