"""What Petastorm does with Arrow tables: `petastorm.pyarrow_helpers`."""
