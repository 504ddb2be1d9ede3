"""Tests, in folders that mirror the packages; helpers are in `tests.helpers`."""
