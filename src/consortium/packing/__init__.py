"""A step in fewer bytes: which tensors stand for it in a file, and how slices are read back."""
