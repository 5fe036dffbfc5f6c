"""Write rows that users give: recognise rows, batches, Arrow and pandas; infer columns; show progress."""
