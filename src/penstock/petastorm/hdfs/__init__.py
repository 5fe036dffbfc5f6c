"""Where Hadoop keeps files: `petastorm.hdfs`."""
