"""WARNING: sharp tools. Used wrongly, each of these gives secrets away without an error.

Everybody else takes `crypto.recipes` and `crypto.secure_sum`. Each module here has published
vectors in `tests/secagg`.
"""
