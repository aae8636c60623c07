"""The values of the staging area: records, changes, names, options, checks of arguments."""
