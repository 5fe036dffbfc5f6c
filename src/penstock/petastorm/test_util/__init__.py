"""`petastorm.test_util`: tools for tests."""
