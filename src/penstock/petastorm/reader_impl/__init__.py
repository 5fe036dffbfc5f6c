"""What loaders hold rows in until they have enough of them: `petastorm.reader_impl`."""
