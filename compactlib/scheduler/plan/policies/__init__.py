"""The assignment policies that come with the library, one a file."""
