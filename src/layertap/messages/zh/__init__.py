"""The sentences in Chinese, one file for each package."""
