"""Tests of `consortium.core`: pure values in, pure values out, no mocks."""
