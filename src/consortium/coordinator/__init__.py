"""The coordinator between real machines: HTTP to inputs, and the directory of names."""
