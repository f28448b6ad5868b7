"""The pure heart: facts, the rules that make them, and the state that they fold into.

Nothing here imports a clock, a file, a socket, a thread, a random source, NumPy or a
logger; of our own code it imports `errors` alone. A test enforces it.
"""
