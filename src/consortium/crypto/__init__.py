"""Cryptography, behind recipes that are hard to misuse."""
