"""The sentences in English, one file for each package."""
