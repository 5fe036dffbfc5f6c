"""What Petastorm gives to those who test against it: `petastorm.test_util`."""
