"""`petastorm.hdfs`: clusters of Hadoop."""
