"""Tools for testing plans, stores and strategies: public, and used by our own tests."""
